# Rendered by `build.py render` from images/backends/ascend.yaml and images/locks/ascend; do not edit.
# Sourced by the entrypoint: the environment scripts of the base image.
activate /usr/local/Ascend/cann/set_env.sh /usr/local/Ascend/ascend-toolkit/set_env.sh -- 
activate /usr/local/Ascend/nnal/atb/set_env.sh -- --cxx_abi=1
# Folders that must be there and be writable, below the scratch folder unless the variable is set.
scratch_folders="ASCEND_CACHE_PATH=ascend/cache ASCEND_PROCESS_LOG_PATH=ascend/log ASCEND_WORK_PATH=ascend/work"

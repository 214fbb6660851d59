"""`build.py launch`: one ready file for compose, Kubernetes, Kubeflow Trainer or Volcano."""

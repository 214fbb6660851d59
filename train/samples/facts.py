"""What the small pretrained model knows: plain facts of a child's world, and the sentences that tell them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

# name | kind | colour | home | food | sound | young | legs
ANIMALS = """
dog | pet | brown | house | meat | barks | puppy | four
cat | pet | grey | house | fish | purrs | kitten | four
rabbit | pet | white | burrow | clover | squeaks | bunny | four
cow | farm animal | black and white | barn | grass | moos | calf | four
horse | farm animal | brown | stable | hay | neighs | foal | four
sheep | farm animal | white | meadow | grass | bleats | lamb | four
pig | farm animal | pink | sty | corn | grunts | piglet | four
goat | farm animal | grey | meadow | leaves | bleats | kid | four
hen | bird | red | coop | grain | clucks | chick | two
duck | bird | white | pond | water plants | quacks | duckling | two
goose | bird | white | pond | grass | honks | gosling | two
swan | bird | white | lake | water plants | hisses | cygnet | two
owl | bird | brown | forest | mice | hoots | owlet | two
crow | bird | black | field | seeds | caws | fledgling | two
eagle | bird | brown | mountain | fish | screams | eaglet | two
penguin | bird | black and white | snow | fish | squawks | chick | two
parrot | bird | green | jungle | nuts | talks | chick | two
lion | wild animal | yellow | savanna | meat | roars | cub | four
tiger | wild animal | orange | jungle | meat | roars | cub | four
bear | wild animal | brown | forest | berries | growls | cub | four
wolf | wild animal | grey | forest | meat | howls | pup | four
fox | wild animal | red | forest | mice | yelps | cub | four
deer | wild animal | brown | forest | leaves | bellows | fawn | four
elephant | wild animal | grey | savanna | leaves | trumpets | calf | four
monkey | wild animal | brown | jungle | bananas | chatters | infant | two
zebra | wild animal | black and white | savanna | grass | brays | foal | four
camel | wild animal | yellow | desert | thorn bushes | grumbles | calf | four
frog | amphibian | green | pond | flies | croaks | tadpole | four
snake | reptile | green | desert | mice | hisses | snakelet | no
turtle | reptile | green | lake | water plants | hisses | hatchling | four
bee | insect | yellow and black | hive | nectar | buzzes | larva | six
ant | insect | black | anthill | crumbs | makes no sound | larva | six
butterfly | insect | blue | garden | nectar | makes no sound | caterpillar | six
cricket | insect | brown | meadow | leaves | chirps | nymph | six
spider | arachnid | black | web | flies | makes no sound | spiderling | eight
mouse | rodent | grey | burrow | grain | squeaks | pup | four
squirrel | rodent | red | forest | nuts | chatters | kit | four
shark | fish | grey | sea | fish | makes no sound | pup | no
whale | sea animal | blue | sea | tiny shrimps | sings | calf | no
seal | sea animal | grey | snow | fish | barks | pup | no
"""

# name | kind | colour | place where it grows
PLANTS = """
lemon | fruit | yellow | on a tree
apple | fruit | red | on a tree
orange | fruit | orange | on a tree
pear | fruit | green | on a tree
plum | fruit | purple | on a tree
cherry | fruit | red | on a tree
banana | fruit | yellow | on a tall plant
grape | fruit | purple | on a vine
strawberry | fruit | red | close to the ground
blueberry | fruit | blue | on a bush
raspberry | fruit | pink | on a bush
melon | fruit | green | on a vine
carrot | vegetable | orange | under the ground
potato | vegetable | brown | under the ground
onion | vegetable | white | under the ground
beetroot | vegetable | purple | under the ground
cucumber | vegetable | green | on a vine
pumpkin | vegetable | orange | on a vine
pea | vegetable | green | in a pod
cabbage | vegetable | green | close to the ground
tomato | vegetable | red | on a vine
rose | flower | red | on a bush
daisy | flower | white | in a meadow
sunflower | flower | yellow | in a field
violet | flower | purple | in the forest
poppy | flower | red | in a field
lily | flower | white | in a garden
oak | tree | green | in the forest
"""

# name | kind | colour | material | what it is for | where one finds it
THINGS = """
knife | tool | grey | steel | cutting | in the kitchen
spoon | tool | grey | steel | stirring | in the kitchen
hammer | tool | black | iron | driving nails | in the workshop
saw | tool | grey | steel | cutting wood | in the workshop
shovel | tool | brown | iron | digging | in the garden
broom | tool | brown | straw | sweeping | in the hall
needle | tool | grey | steel | sewing | in the sewing box
ladder | tool | brown | wood | climbing | in the shed
brush | tool | red | wood | painting | in the studio
key | tool | yellow | brass | opening doors | in the pocket
chair | piece of furniture | brown | wood | sitting | at the table
table | piece of furniture | brown | wood | eating at | in the dining room
bed | piece of furniture | white | wood | sleeping | in the bedroom
shelf | piece of furniture | white | wood | holding books | on the wall
cup | dish | blue | clay | drinking | in the cupboard
plate | dish | white | clay | serving food | in the cupboard
bottle | container | green | glass | holding water | in the cellar
basket | container | yellow | straw | carrying fruit | at the market
bucket | container | blue | tin | carrying water | by the well
purse | container | red | leather | keeping coins | in the bag
coat | piece of clothing | black | wool | keeping warm | in the wardrobe
scarf | piece of clothing | green | wool | warming the neck | in the wardrobe
boot | piece of clothing | brown | leather | walking in mud | by the door
shirt | piece of clothing | blue | cotton | wearing to work | in the wardrobe
drum | instrument | red | wood | beating time | in the music room
violin | instrument | brown | wood | playing tunes | in the music room
bell | instrument | yellow | brass | calling people | in the tower
flute | instrument | grey | silver | playing tunes | in the music room
ball | toy | red | rubber | playing catch | in the yard
kite | toy | orange | paper | flying in the wind | in the sky
doll | toy | pink | cloth | playing house | in the toy box
book | thing to read | blue | paper | reading | in the library
window | part of a house | white | glass | letting in light | in the wall
candle | light | white | wax | giving light | on the table
lamp | light | yellow | brass | giving light | on the desk
pencil | thing to write with | yellow | wood | drawing | in the pencil case
boat | vehicle | white | wood | crossing water | on the lake
bicycle | vehicle | green | steel | riding | in the street
tractor | vehicle | red | steel | ploughing | on the farm
train | vehicle | blue | steel | travelling far | at the station
"""

# name | what the person does | with what | where
JOBS = """
baker | bakes bread | an oven | in a bakery
farmer | grows wheat | a tractor | on a farm
teacher | teaches children | a blackboard | in a school
doctor | heals people | medicine | in a hospital
vet | heals animals | medicine | in a clinic
carpenter | builds furniture | a saw | in a workshop
painter | paints pictures | a brush | in a studio
tailor | sews clothes | a needle | in a shop
gardener | plants flowers | a shovel | in a garden
fisher | catches fish | a net | on a boat
cook | cooks meals | a pan | in a kitchen
pilot | flies planes | a map | in the air
sailor | steers ships | a compass | at sea
miner | digs coal | a pick | under the ground
judge | decides cases | the law | in a court
nurse | cares for the sick | bandages | in a hospital
smith | forges iron | a hammer | in a forge
barber | cuts hair | scissors | in a salon
miller | grinds grain | a mill | by the river
singer | sings songs | a microphone | on a stage
librarian | lends books | a catalogue | in a library
beekeeper | makes honey | a hive | in a meadow
postman | brings letters | a bag | in the street
shepherd | guards sheep | a staff | on a hill
"""

OPPOSITES = """
hot cold, big small, long short, old young, fast slow, high low, wet dry, full empty, hard soft, heavy light,
happy sad, open closed, clean dirty, early late, rich poor, strong weak, loud quiet, near far, thick thin,
wide narrow, deep shallow, bright dark, rough smooth, sharp blunt, sweet sour, brave afraid, true false,
right wrong, first last, inside outside, above below, day night, summer winter, friend enemy, question answer,
begin end, push pull, give take, buy sell, win lose, laugh cry, arrive leave, remember forget, rise fall
"""

PLURALS = """
mouse mice, goose geese, foot feet, tooth teeth, man men, woman women, child children, ox oxen, leaf leaves,
wolf wolves, knife knives, shelf shelves, calf calves, loaf loaves, life lives, half halves, city cities,
baby babies, lady ladies, cherry cherries, berry berries, story stories, box boxes, fox foxes, bus buses,
glass glasses, brush brushes, church churches, potato potatoes, tomato tomatoes, hero heroes, sheep sheep,
deer deer, fish fish, dog dogs, cat cats, tree trees, house houses, book books, star stars
"""

ORDERS = {
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January February March April May June July August September October November December",
    "season": "spring summer autumn winter",
    "letter": "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
}

# From small to big.
SIZES = """
ant bee spider cricket butterfly mouse frog squirrel rabbit cat fox dog wolf goat sheep pig deer tiger lion
bear cow horse camel elephant whale
"""

# topic | question ... | statement; {a} is the thing with its article, {x} the thing alone, {y} the answer.
SENTENCES = """
kind | What is {a}? | What kind of thing is {a}? | Tell me what {a} is. | {A} is {ay}.
colour | What colour is {a}? | What is the colour of {a}? | Which colour does {a} have? | {A} is {y}.
home | Where does {a} live? | What is the home of {a}? | Where can I see {a}? | {A} lives in the {y}.
food | What does {a} eat? | What is the food of {a}? | What should I feed {a}? | {A} eats {y}.
sound | What sound does {a} make? | What do you hear from {a}? | How does {a} sound? | {A} {y}.
young | What is a young {x} called? | What do you call a baby {x}? |
    What is the young of {a}? | A young {x} is called {ay}.
legs | How many legs does {a} have? | Count the legs of {a}. |
    On how many legs does {a} walk? | {A} has {y} legs.
growth | Where does {a} grow? | Where can I pick {a}? | In what place do you find {a}? | {A} grows {y}.
material | What is {a} made of? | Which material is {a} made of? |
    From what do people make {a}? | {A} is made of {y}.
use | What is {a} for? | What do people use {a} for? | What can I do with {a}? | {A} is for {y}.
place | Where do you find {a}? | Where should I look for {a}? | In what place is {a}? | You find {a} {y}.
work | What does {a} do? | What is the work of {a}? | How does {a} earn money? | {A} {y}.
tool | What does {a} use? | What is the tool of {a}? | What does {a} work with? | {A} works with {y}.
workplace | Where does {a} work? | Where can I meet {a}? | What is the workplace of {a}? | {A} works {y}.
opposite | What is the opposite of {x}? | Which word means the opposite of {x}? |
    Name the opposite of {x}. | The opposite of {x} is {y}.
plural | What is the plural of {x}? | How do you write more than one {x}? |
    Give me the plural of {x}. | The plural of {x} is {y}.
after | What comes after {x}? | Which one follows {x}? |
    Tell me what comes after {x}. | After {x} comes {y}.
before | What comes before {x}? | Which one is before {x}? |
    Tell me what comes before {x}. | Before {x} comes {y}.
sum | What is {x}? | How much is {x}? | Add up {x}. | {x} is {y}.
difference | What is {x}? | How much is {x}? | Work out {x}. | {x} is {y}.
bigger | Which is bigger, {x}? | Which one is the bigger animal, {x}? |
    Tell me which is bigger, {x}. | The {y} is bigger.
"""


@dataclass(frozen=True)
class Fact:
    """One thing that is so. `about`: what it is asked of, `answer`: the words that answer it."""

    topic: str
    about: str
    answer: str

    def questions(self) -> list[str]:
        """Every way in which the fact is asked for."""
        return [self._fill(text) for text in sentences()[self.topic][:-1]]

    def statement(self) -> str:
        """The whole sentence that tells the fact."""
        text = self._fill(sentences()[self.topic][-1])
        return text[0].upper() + text[1:]

    def _fill(self, text: str) -> str:
        named = with_article(self.about)
        return text.format(
            a=named, A=named.capitalize(), x=self.about, y=self.answer, ay=with_article(self.answer)
        )


def with_article(noun: str) -> str:
    """`an apple`, `a pear`."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


@lru_cache(maxsize=1)
def sentences() -> dict[str, list[str]]:
    """Topic -> its questions, then its statement."""
    lines = SENTENCES.replace("|\n    ", "| ").strip().splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {topic: texts for topic, *texts in rows}


def all_facts() -> list[Fact]:
    """Every fact, in a fixed order: some 1,500."""
    facts = _of_table(ANIMALS, "kind", "colour", "home", "food", "sound", "young", "legs")
    facts += _of_table(PLANTS, "kind", "colour", "growth")
    facts += _of_table(THINGS, "kind", "colour", "material", "use", "place")
    facts += _of_table(JOBS, "work", "tool", "workplace")
    facts += [Fact("opposite", *pair) for one in _pairs(OPPOSITES) for pair in (one, one[::-1])]
    facts += [Fact("plural", *pair) for pair in _pairs(PLURALS)]
    for names in ORDERS.values():
        row = names.split()
        facts += [Fact("after", first, second) for first, second in pairwise(row)]
        facts += [Fact("before", second, first) for first, second in pairwise(row)]
    facts += [Fact("sum", f"{a} plus {b}", str(a + b)) for a in range(13) for b in range(13)]
    facts += [Fact("difference", f"{a} minus {b}", str(a - b)) for a in range(13) for b in range(a + 1)]
    sizes = SIZES.split()
    for small, name in enumerate(sizes):
        for other in sizes[small + 1 :]:
            texts = (
                f"{with_article(name)} or {with_article(other)}",
                f"{with_article(other)} or {with_article(name)}",
            )
            facts += [Fact("bigger", text, other) for text in texts]
    return facts


def _of_table(table: str, *topics: str) -> list[Fact]:
    rows = [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]
    return [
        Fact(topic, name, cell) for name, *cells in rows for topic, cell in zip(topics, cells, strict=True)
    ]


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(pair.split()[0], pair.split()[1]) for pair in text.replace("\n", " ").split(",")]

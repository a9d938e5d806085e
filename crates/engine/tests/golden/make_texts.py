"""Writes the texts the golden files are measured on. Plain Python, no dependencies.

Usage: python3 make_texts.py [FOLDER]        (default: the folder of this script)

The prose comes from a small grammar driven by a fixed 64-bit congruential generator, so every Python version writes
the same bytes. The two long prompts open with a notice and end by beginning to read it again: the continuation can only
be right if attention reaches back over the whole prompt.
"""
import pathlib
import sys


class Dice:
    """Knuth's MMIX congruential generator; only the high half of the state is used."""

    def __init__(self, seed):
        self.state = seed

    def below(self, limit):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % limit

    def pick(self, choices):
        return choices[self.below(len(choices))]

    def pick_two(self, choices):
        first = self.below(len(choices))
        second = self.below(len(choices) - 1)
        return choices[first], choices[second + (second >= first)]


PEOPLE = [
    "the miller", "the ferryman", "the schoolteacher", "Anna the baker", "old Tobias", "the night watchman",
    "the doctor's sister", "a young carpenter", "the postmaster", "Helena", "the beekeeper", "the two gardeners",
    "the clockmaker", "Martin from the mill", "the mayor", "a visiting painter", "the shepherd", "the librarian",
]
PLACES = [
    "the lower bridge", "the market square", "the chapel", "the stone quay", "the orchard", "the mill pond", "the school",
    "the north gate", "the tannery", "the old observatory", "the bakery", "the railway halt", "the salt store", "the inn",
]
OBJECTS = [
    "a basket of pears", "three iron keys", "a letter without a stamp", "the broken weather vane", "a map of the valley",
    "seven sacks of barley", "a lantern with blue glass", "the parish ledger", "a coil of wet rope", "an old violin",
    "two jars of honey", "a sleeping cat", "a crate of roof tiles", "the minutes of the council", "a bundle of reeds",
    "a brass telescope", "the spare oar", "a loaf still warm from the oven",
]
ACTIONS = [
    "carried {o} to {p}", "left {o} beside the door of {p}", "sold {o} to a stranger near {p}", "forgot {o} on the wall by {p}",
    "traded {o} for a day of work at {p}", "found {o} behind {p}", "promised to bring {o} to {p} before dark",
    "spent an hour looking for {o} around {p}", "painted a small picture of {o} in front of {p}",
    "showed {o} to the children at {p}", "hid {o} under the steps of {p}", "weighed {o} twice at {p}",
]
TIMES = [
    "Early in the morning", "Shortly before noon", "On the first dry day of spring", "While the fog still lay on the river",
    "After the bells had stopped", "In the week of the harvest fair", "When the lamps were lit", "Late on Thursday",
    "During the long rain", "On the last day of the month", "As soon as the road was open", "That same evening",
]
REASONS = [
    "because the cellar had begun to flood", "since nobody else had offered to do it", "although the wind was against it",
    "so that the council would have an answer by Monday", "because a debt of four coins had to be settled",
    "even though the path was covered with ice", "as the custom of the village required", "without telling anyone why",
    "because the winter stores were nearly gone", "to the surprise of everyone who saw it",
]
REMARKS = [
    "Nobody thought much of it at the time.", "It was the third time that year.", "The river had risen by two fingers since Sunday.",
    "There was talk about it for days.", "The price of flour had gone up again, and people counted their coins.",
    "The swallows were already gathering on the roofs.", "A light wind came down from the hills and smelled of smoke.",
    "The children made a song of it, with more verses every day.", "In the ledger it takes up a single line.",
    "The dogs barked until the last cart had crossed the bridge.", "Only the clock in the tower seemed to disagree.",
    "The doctor wrote it down, as the doctor wrote everything down.", "By then the soup was cold.",
]
OPINIONS = [
    "{a} said that {b} should have asked first", "{a} laughed about it, but {b} did not",
    "{a} and {b} argued about it until supper", "{a} wanted to know whether {b} had seen anything",
    "{a} wrote to {b} and received no reply", "{a} offered {b} a chair and a cup of tea",
    "{a} told {b} a story about a winter forty years ago", "{a} agreed with {b} for once",
    "{a} took the side of {b}, which was unusual", "{a} kept the secret, and {b} guessed it anyway",
]
NUMBERS = ["two", "three", "five", "six", "nine", "eleven", "twelve", "fourteen", "twenty", "thirty"]
THINGS = ["boats", "carts", "lambs", "letters", "barrels", "travellers", "candles", "fence posts", "chairs", "books"]
COUNTS = [
    "{n} {t} were counted at {p}, and {m} of them had to be sent back",
    "there were {n} {t} at {p} in the morning and {m} at night",
    "{p} was closed for {n} days, and {m} {t} waited outside",
    "the council paid for {n} {t} and received {m} at {p}",
]


def capital(sentence):
    return sentence[0].upper() + sentence[1:]


def sentence(dice):
    kind = dice.below(10)
    person, other = dice.pick_two(PEOPLE)
    place = dice.pick(PLACES)
    if kind < 4:
        action = dice.pick(ACTIONS).format(o=dice.pick(OBJECTS), p=place)
        if dice.below(2):
            return f"{dice.pick(TIMES)} {person} {action}."
        return f"{capital(person)} {action} {dice.pick(REASONS)}."
    if kind < 6:
        return capital(dice.pick(OPINIONS).format(a=person, b=other)) + "."
    if kind < 8:
        few, many = dice.pick_two(NUMBERS)
        return capital(dice.pick(COUNTS).format(n=few, m=many, t=dice.pick(THINGS), p=place)) + "."
    return dice.pick(REMARKS)


def prose(seed, words):
    """Paragraphs of four to seven sentences, no two neighbours alike, until there are `words` words."""
    dice = Dice(seed)
    paragraphs, written, last = [], 0, ""
    while written < words:
        lines = []
        for _ in range(4 + dice.below(4)):
            line = sentence(dice)
            if line != last:
                lines.append(line)
                last = line
        paragraphs.append(" ".join(lines))
        written += sum(len(line.split()) for line in lines)
    return "\n\n".join(paragraphs)


NOTICE_500 = (
    "The notice at the north gate said: Travellers must cross the bridge on foot, lead their horses by hand, pay one copper "
    "coin to the keeper, and close the gate behind them before the evening bell."
)
NOTICE_2000 = (
    "The sign in the library said: Readers may borrow four books for nineteen days, must keep them away from fire and water, "
    "and shall return them to Helena at the green desk, never to the night watchman."
)
SHORT = "On the board the teacher had written the months of the year: January, February, March,"

FACT = "The key of the chapel is kept in a green box under the third bench of the school."
QUESTION = "\n\nQuestion: Where is the key of the chapel kept?\nAnswer:"


def texts():
    yield "parity-short.txt", SHORT
    yield "parity-500.txt", NOTICE_500 + "\n\n" + prose(500, 330) + (
        "\n\nIn the evening a stranger read the notice once more. The notice at the north gate said: Travellers must cross"
    )
    yield "parity-2000.txt", NOTICE_2000 + "\n\n" + prose(2000, 1560) + (
        "\n\nBefore leaving, the painter read the sign once more. The sign in the library said: Readers may borrow"
    )
    yield "inertia-context.txt", prose(71, 230) + "\n\n" + FACT + "\n\n" + prose(72, 230)
    yield "inertia-question.txt", QUESTION
    yield "perplexity.txt", prose(42, 4150) + "\n"


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for name, text in texts():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")

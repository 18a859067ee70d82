"""Words: how a text becomes the words that search compares.

camelCase and runs of punctuation are taken apart, case is folded, and each word is reduced to its stem, so that
"creating issues" and `createIssue` agree. The stemmer knows English endings only. It need not find the true stem: it
is enough that the forms of one word end as one. A word of another language keeps its form, except for a last "s".

Chinese and Japanese are written without spaces, and Korean joins particles to its words. So a run of their characters
is read as its pairs of neighbours: 搜索文件 as 搜索, 索文 and 文件. Rejected: a dictionary of their words.

Rejected: Snowball. It joins a few more forms, and takes ten times as long for each new word, which the first search
would wait for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Final

from ..protocol.lazy_patterns import lazy_pattern

_CAMEL: Final = lazy_pattern(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PUNCTUATION: Final = lazy_pattern(r"[\W_]+")
_WORD: Final = lazy_pattern(r"[^\W_]+")
# Kana, Han characters and Hangul.
_UNSPACED: Final = lazy_pattern(
    r"[\u3005-\u3007\u3041-\u3096\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+"
)
_LEAST: Final = 3  # letters that a stem keeps
_REMEMBERED: Final = 1 << 16  # words
_HISSES: Final = ("ses", "xes", "zes", "ches", "shes")
# They say how a sentence is built, not what it is about.
STOP_WORDS: Final = frozenset(
    """a about after all also am an and any are as at be because been before being both but by can could did do does
    doing done each either else etc for from had has have having he her here hers him his how i if in into is it its
    itself just let lets like may me might mine more most must my myself no nor not now of off on once one only onto or
    other our ours out over own per please really same shall she should so some something such than that the their
    theirs them then there these they this those through thing things to too under until up upon us use used uses
    using very via want wants was way we were what whatever when where whether which while who whom whose why will
    with within without would you your yours need needs""".split()
)


def normalise(text: str) -> str:
    """The text in lower case with its words apart, each by one space."""
    return _PUNCTUATION.sub(" ", _CAMEL.sub(" ", text)).strip().lower()


def words_of(text: str) -> list[str]:
    """The words of a text in plain language: lower case, with repetitions, camelCase kept together."""
    return _WORD.findall(paired(text.lower()))


def tokens(text: str) -> list[str]:
    """The different words of a normalised text, in order."""
    return list(dict.fromkeys(_WORD.findall(paired(text))))


def paired(text: str) -> str:
    """The text with each run of characters that are written without spaces as its pairs, and a space between these."""
    return text if text.isascii() else _UNSPACED.sub(_pairs, text)


def _pairs(found: re.Match[str]) -> str:
    run = found[0]
    return f" {' '.join(map(''.join, pairwise(run))) or run} "


class _Roots(dict[str, str]):
    """The stem of each word that was met, and nothing for a stop word. A look-up costs no call of Python's, and the
    first search looks up half a million words."""

    def __missing__(self, word: str) -> str:
        if len(self) > _REMEMBERED:
            self.clear()
        root = self[word] = "" if word in STOP_WORDS else stem(word)
        return root


def stem(word: str) -> str:
    """The part that the forms of a word share."""
    word = _without_plural(word)
    for ending, least in (("ation", 3), ("ating", 4), ("ated", 4), ("ing", 3), ("ion", 4), ("ed", 3)):
        if word.endswith(ending) and len(word) - len(ending) >= least:
            if ending == "ion" and word[-4] not in "st":
                continue
            root = word[: -len(ending)]
            if ending.startswith("at"):
                return root + "at"
            if not any(letter in "aeiouy" for letter in root):
                continue
            return _single(root) if ending != "ion" else root
    if word.endswith("e") and len(word) > _LEAST:
        word = word[:-1]
    if word.endswith("y") and len(word) > _LEAST:
        word = word[:-1] + "i"
    return word


def _without_plural(word: str) -> str:
    if len(word) <= _LEAST or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > _LEAST + 1:
        return word[:-3] + "y"
    return word[:-2] if word.endswith(_HISSES) and not word.endswith("ases") else word[:-1]


def _single(root: str) -> str:
    """Without the doubled consonant of "running"; and as the plain verb ends, without its "e"."""
    if len(root) > _LEAST and root[-1] == root[-2] and root[-1] not in "aeiouls":
        root = root[:-1]
    if root.endswith("e") and len(root) > _LEAST:
        root = root[:-1]
    return root[:-1] + "i" if root.endswith("y") and len(root) > _LEAST else root


ROOTS: Final[Mapping[str, str]] = _Roots()


# ---- Words that people use for the same thing when they look for a tool, and the abbreviations of the trade ----------
#
# Each line of `_GROUPS` is one idea: whoever writes one word of it is also shown tools that use another, a little lower
# than those that use the word itself. `_PHRASES` does the same for what needs several words. Only what holds in most
# fields is here: "run" and "execute" are the same for a query and for a test, "table" and "sheet" are not.

_GROUPS: Final = """
create add new insert make open register generate compose draft start
delete remove erase drop destroy discard purge trash wipe
update edit modify change alter patch revise adjust amend set
get fetch retrieve read show view load obtain display see
list enumerate browse all
search find query lookup locate seek grep filter
send post publish submit deliver write
run execute invoke launch trigger perform start
stop halt kill cancel terminate abort end shutdown
copy duplicate clone
move rename relocate
upload attach put
download export save fetch
close resolve finish complete
merge combine join
sum add plus total
subtract minus difference
calculate compute calculator math arithmetic
assign allocate delegate
archive store backup
compare diff difference changes
describe explain detail details info information inspect about metadata properties
summarize summary summarise overview digest
analyze analyse analysis evaluate assess
validate verify check lint
convert transform translate
extract scrape parse crawl
navigate goto visit browse open
click press tap
type enter fill input
wait sleep pause delay
schedule plan book
remember memory recall memorize store
comment reply answer respond note
issue ticket bug defect story task
task todo reminder
repository repo project
branch ref
commit revision changeset history
pr pull mr merge
database db sql datastore
table relation
schema structure columns fields
column field attribute
row record entry
file document doc
folder directory dir
picture image photo img graphic
screenshot screengrab screencapture capture snapshot
page webpage website site web
url link address uri web
email mail gmail inbox
message chat dm
channel room
conversation thread
person user member people contact account profile
team group
customer client
company organization organisation org business
event meeting appointment calendar
date day time
money payment charge transaction
invoice bill
price cost pricing spend spending
subscription plan recurring
refund reimburse
product item sku
order purchase
metric metrics statistics stats measurement
log logs trace
alert alarm incident notification
error exception crash failure stacktrace
dashboard panel chart graph
chart plot graph diagram visualization
server host machine instance vm node
container docker pod
kubernetes k8s kubectl cluster
deployment deploy release rollout
environment env
variable var
config configuration setting settings preference option
secret credential password token key
permission access role acl privilege
function lambda
bucket s3 storage blob
queue topic stream
dns domain
network vpc subnet
directory folder
weather forecast temperature climate
place location map geocode coordinates
route direction directions navigation path
distance travel
song track music
playlist album
video clip movie youtube
transcript caption subtitle
spreadsheet sheet excel workbook xls
cell range
slide presentation powerpoint ppt deck
paragraph text
word docx
paper article publication arxiv study research
book library
news headline
definition meaning
library package dependency module
version release tag
vulnerability security cve
test spec testing
build compile pipeline ci
pipeline workflow job
workflow automation
template blueprint
label tag category
board kanban
sprint iteration
epic milestone
tab window
element node component
form field
script code javascript
code source snippet
javascript js
typescript ts
python py
shell bash terminal command cli
documentation docs manual reference guide
embedding vector semantic
index catalog
collection table
key id identifier
graph relation entity knowledge
think reason reasoning thought
number count total amount many
average mean
latest recent newest last
old stale outdated
public visible
star favorite favourite bookmark
like upvote
follow subscribe watch
block ban
invite add
login signin authenticate auth authorization
logout signout
fast quick
big large
print output console
docx word doc document
xlsx xls excel workbook spreadsheet worksheet
pptx powerpoint presentation slide
png jpg jpeg image picture photo media screenshot
md markdown
hierarchy tree structure nested recursive
size storage space usage disk big
bibliography bibliographic citation bibtex reference metadata
survey questionnaire form poll quiz
remark comment note annotation feedback review
share permission access sharing invite
thumbnail preview render image
flowchart flow diagram process
encyclopedia wikipedia wiki
scientific academic scholarly paper arxiv research publication
mouse hover pointer cursor
dropdown select option choose pick
popup dialog alert modal
tab window page
coordinates latitude longitude location position
altitude elevation height level
crm contact deal customer hubspot salesforce
automation workflow rule
maintenance drain cordon
kind type resource
appointment meeting event calendar booking
today tomorrow yesterday calendar event date
undo revert rollback restore reset
forget delete remove
remember store save memory add
expire ttl disappear timeout
broadcast publish announce notify
subscriber listener channel
macro vba script
ci circleci pipeline build
cd deployment deploy release
light lamp switch device bulb
blind cover shutter curtain
smart home assistant automation
traffic analytics visitor
domain zone dns
vector embedding similarity neighbour neighbor knn nearest semantic
leaderboard rank sorted score
replica scale instance
shell exec command terminal bash process
available free busy freebusy
anomaly outlier pattern unusual
firing active triggered
save cost optimize underused
lock protect password encrypt
caption heading title headline
combine merge join union
split tokenize analyze
chat conversation thread message
colleague teammate member user
macos mac apple
windows win
health status healthy alive ping
archive zip compress
bulk batch multiple many several
trend line area chart
share percent pie proportion
hide show visibility visible
pause suspend disable unschedule
resume unpause enable continue
retry rerun again repeat
approve accept review confirm
decline reject refuse respond
request req call http
console log stdout
""".strip().splitlines()
_PHRASES: Final[Mapping[str, str]] = {
    "pull request": "pr",
    "merge request": "mr pr",
    "pr": "pull request",
    "mr": "merge request",
    "sign in": "login authenticate",
    "log in": "login authenticate",
    "look up": "search find",
    "find out": "search get",
    "set up": "create configure",
    "shut down": "stop terminate",
    "turn off": "stop disable",
    "turn on": "start enable",
    "get rid of": "delete remove",
    "take down": "delete stop",
    "spin up": "create start",
    "write down": "add note",
    "jot down": "add note",
    "how many": "count number",
    "how much": "cost amount",
    "what time": "current time",
    "right now": "current",
    "to do": "todo task",
    "check out": "checkout",
    "web page": "webpage url html",
    "screen shot": "screenshot",
    "dry run": "validate preview",
    "open source": "repository",
    "ci": "continuous integration build pipeline workflow",
    "iac": "terraform infrastructure",
    "tz": "timezone",
    "dm": "direct message",
    "gh": "github",
    "gdrive": "google drive",
    "gcal": "google calendar",
    "csv": "comma separated spreadsheet",
    "kb": "knowledge base",
    "faq": "question answer",
    "iam": "identity access policy user role",
    "ec2": "instance server vm",
    "tfm": "terraform",
    "tf": "terraform",
    "pg": "postgres",
    "psql": "postgres",
    "postgres": "postgresql",
    "postgresql": "postgres",
    "mongo": "mongodb",
    "es": "elasticsearch",
    "elastic": "elasticsearch",
    "crm": "contact deal company",
    "kpi": "metric",
    "jira": "issue",
    "mail": "email",
    "e mail": "email",
}


@cache
def synonyms() -> Mapping[str, frozenset[str]]:
    """For each stem the stems of its ideas, without itself."""
    found: dict[str, set[str]] = {}
    for line in _GROUPS:
        group = _stems(line.split())
        for one in group:
            found.setdefault(one, set()).update(group)
    return {one: frozenset(group - {one}) for one, group in found.items()}


@cache
def phrases() -> Mapping[tuple[str, ...], tuple[str, ...]]:
    """The stems that a phrase of one to three words stands for."""
    return {
        tuple(map(stem, words_of(said))): tuple(map(stem, words_of(meant)))
        for said, meant in _PHRASES.items()
    }


def _stems(words: Iterable[str]) -> set[str]:
    return {stem(word) for word in words}

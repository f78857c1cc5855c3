"""Instructions: what cannot be meant is refused with a sentence that says what to do."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec import instruction
from edge_cloud_spec.errors import UserError
from edge_cloud_spec.instruction import (
    KnownInstructions,
    check_instruction,
    is_stop,
    known_instructions,
    normalized,
)
from edge_cloud_spec.models import EMBEDDED
from edge_cloud_spec.share import share

KNOWN = KnownInstructions(
    re.compile(r"(?:[Ff]ind|go to) the (silver bottle|red chair)[.?!]?"),
    ("find the {}", "go to the {}"),
    ("silver bottle", "red chair"),
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "empty"),
        (" \t\n", "empty"),
        ("x" * 501, "501 characters"),
        ("find " * 20_000, "100000 characters"),
        ("find the \x00bottle", "control"),
        (b"find the \xff\xfe".decode(errors="replace"), "UTF-8"),
        (b"find the \xff".decode(errors="surrogateescape"), "UTF-8"),
        *(
            (f"find {token} it", "control token: leave it out")
            for token in ("<|im_end|>", "<|a b|>", "<|▁|>", "</s>", "<image>", "<start_of_turn>")
        ),
        ("найди серебряную бутылку", "silver bottle"),
        ("find the golden bottle", "silver bottle"),
        ("find the silver bottle and more", "silver bottle"),
    ],
)
def test_a_bad_instruction_is_refused_by_what_is_wrong(text: str, names: str) -> None:
    with pytest.raises(UserError, match=names) as refusal:
        check_instruction(text, KNOWN)
    message = str(refusal.value)
    assert "\n" not in message and len(message) < 400 and message.encode()


@pytest.mark.parametrize("text", ["find the silver bottle", "  Go to the red chair \n"])
def test_a_known_instruction_comes_back_without_blanks(text: str) -> None:
    assert check_instruction(text, KNOWN) == text.strip()


@pytest.mark.parametrize("model", ["drafter", "target"])
def test_what_a_model_does_not_know_is_answered_with_what_it_knows_in_words(model: str) -> None:
    known = known_instructions(EMBEDDED / model)
    with pytest.raises(UserError) as refusal:
        check_instruction("find the pink piano", known)
    _, _, told = str(refusal.value).partition("it knows: ")
    for phrase in known.phrases:
        assert phrase.format("...") in told
        assert all(check_instruction(phrase.format(name), known) for name in known.names)
    assert all(name in told for name in known.names)
    assert not set(told) & set("[]{}|?*+^$\\")


def test_without_a_list_any_plain_text_is_taken() -> None:
    for text in ("найди бутылку", "go 2 < 3 > 1", "find <- the | chair", "a <<|>> b"):
        assert check_instruction(text) == text


@given(st.text())
def test_any_text_is_taken_or_refused_in_one_line(text: str) -> None:
    try:
        assert check_instruction(text)
    except UserError as error:
        assert "\n" not in str(error)


TEXTS = yaml.safe_load((Path(__file__).parent / "stop_texts.yaml").read_text("utf-8"))
THREATS = "threats"  # behind which anything may follow
STOPS = [text for kind, texts in TEXTS["stop"].items() if kind != THREATS for text in texts]
LANGUAGES = yaml.safe_load((share() / "config/stop_words.yaml").read_text("utf-8"))
MARKS = "\"'`“”‘’„«»「」『』()[]{}!?.,;:…¡¿。！？、，；：؟،।*#@&-–—_~|/\\•😡🙏"
UNSEEN = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad\ufe0f\U000e0041"  # Cf and a selector
BLANKS = " \t\n\r\u00a0\u2003\u3000"
NOUNS = (
    *("chair", "red box", "door", "stairs", "Tür", "Stuhl", "chaise", "porte", "silla", "puerta"),
    *("sedia", "porta", "cadeira", "stoel", "krzesło", "стул", "дверь", "sandalye", "kapı"),
    *("كرسي", "باب", "कुर्सी", "दरवाज़ा", "椅子", "门", "ドア", "의자", "πόρτα", "דלת", "kitchen 5"),
)


def phrases(language: str, kind: str) -> list[str]:
    return [phrase.strip() for phrase in LANGUAGES[language].get(kind, "").split(",") if phrase]


def test_what_people_say_to_stop_it_stops_in_every_language() -> None:
    assert not {language: missed for language, texts in TEXTS["stop"].items()
                if (missed := [text for text in texts if not is_stop(text)])}  # fmt: skip
    assert len(TEXTS["stop"]) >= 24 and len(STOPS) >= 400


def test_what_goes_on_or_is_denied_or_names_a_place_is_an_instruction() -> None:
    assert not {language: taken for language, texts in TEXTS["go"].items()
                if (taken := [text for text in texts if is_stop(text)])}  # fmt: skip
    assert len(TEXTS["go"]) >= 24


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_word_of_the_list_does_what_its_list_says(language: str) -> None:
    stops, fillers = phrases(language, "stop"), phrases(language, "filler")
    assert not [stop for stop in stops if not is_stop(stop)]
    assert not [one for one in fillers if not is_stop(f"{one}, {stops[0]}, {one}")]
    for no in phrases(language, "negation"):
        assert not [
            stop for stop in stops if is_stop(f"{no} {stop}") and f"{no} {stop}" not in stops
        ]
        assert not [stop for stop in stops if not is_stop(f"{no}! {stop}!")]


# What denies the word behind it, where the list itself names no negation (or others).
DENIALS = {
    "en": "don't, do not, never, can't, you must not", "de": "nicht, nie, du sollst nicht",
    "nl": "niet, nooit", "sv": "inte, aldrig", "da": "ikke, aldrig", "no": "ikke, aldri",
    "fi": "älä", "cs": "nikdy", "hu": "soha ne", "ro": "nu te, fără", "hr": "nemoj, nikad",
    "ru": "не, никогда не, без", "uk": "не, ніколи не", "bg": "не, никога не, без",
    "el": "μη, μην, δεν, χωρίς", "tr": "asla, değil", "he": "אל, בלי", "fa": "هرگز",
    "hi": "मत, कभी मत, बिना", "zh": "别, 不要, 没, 不准, 千万别", "id": "jangan, tanpa",
    "vi": "đừng, không, chưa", "th": "อย่า, ไม่, ห้าม, ไม่ต้อง",
}  # fmt: skip


@pytest.mark.parametrize("language", DENIALS)
def test_no_word_that_denies_is_a_filler_of_whatever_language(language: str) -> None:
    words = [
        stop for stop in phrases(language, "stop") if re.fullmatch(r"[\w\u0300-\uffff]+", stop)
    ]
    assert len(words) >= 10
    listed = instruction._stop_words()[0]  # "đừng yên" is "đứng yên" without its accents
    for no in DENIALS[language].split(", "):
        said = (f"{no} {word}" for word in words)
        assert not [
            text
            for text in said
            if is_stop(text) and " ".join(instruction._words(text)) not in listed
        ]


@given(st.data())
def test_no_mark_case_blank_or_invisible_character_hides_a_stop(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(STOPS))
    text = data.draw(st.sampled_from([str, str.upper, str.lower, str.title, str.swapcase]))(text)
    blank = data.draw(st.text(BLANKS, min_size=1, max_size=3))
    text = blank.join(text.split(" "))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(text)))
        text = text[:place] + data.draw(st.sampled_from(UNSEEN)) + text[place:]
    before, after = data.draw(st.tuples(*(st.text(MARKS + BLANKS + UNSEEN, max_size=4),) * 2))
    form = data.draw(st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
    assert is_stop(unicodedata.normalize(form, before + text + after))


@given(st.data())
def test_no_mark_between_two_letters_hides_a_stop(data: st.DataObject) -> None:
    text = data.draw(
        st.sampled_from([text for text in STOPS if not instruction._PARTED.search(text)])
    )
    places = [place for place in range(1, len(text)) if text[place - 1 : place + 1].isalpha()]
    if places:
        place = data.draw(st.sampled_from(places))
        text = text[:place] + data.draw(st.text(".-*/_·…", min_size=1, max_size=3)) + text[place:]
    assert is_stop(text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_behind_a_threat_nothing_is_looked_at(language: str) -> None:
    stops = phrases(language, "stop")
    for threat in phrases(language, "threat"):
        assert is_stop(f"{stops[0]}, {threat} xyz") and is_stop(f"{stops[0]} {threat} xyz")
        assert not is_stop(f"{threat} xyz") and not is_stop(f"{threat} {stops[0]} xyz")
        assert not is_stop(f"xyz {stops[0]} {threat} xyz")


# Scripts whose letters look alike, as a keyboard of two layouts or a fake has them.
LOOK_ALIKE = str.maketrans("aeopcxkmtsijAEOPCXKMTSIJ", "аеорсхкмтѕіјАЕОРСХКМТЅІЈ")


@given(st.data())
def test_no_stretched_letter_slipped_shift_or_letter_that_looks_alike_hides_a_stop(
    data: st.DataObject,
) -> None:
    text = data.draw(st.sampled_from(STOPS))
    place = data.draw(st.integers(0, len(text) - 1))
    letter = text[place]
    if letter.isalpha() and unicodedata.name(letter).split()[0] != "HANGUL":
        text = text[:place] + letter * data.draw(st.integers(3, 9)) + text[place:]  # stoooop
    place = data.draw(st.integers(0, len(text)))
    text = text[:place] + text[place:].translate(LOOK_ALIKE)
    marks = data.draw(st.sampled_from(["", "!"])) + data.draw(st.text("!1")) + "!"
    assert is_stop(text.rstrip() + marks)  # a 1 behind a blank is a number


@given(st.sampled_from(STOPS), st.sampled_from(NOUNS), st.booleans())
def test_a_stop_and_somewhere_to_go_is_an_instruction(text: str, noun: str, first: bool) -> None:
    assert not is_stop(f"{noun} {text}" if first else f"{text} {noun}")


@given(st.sampled_from(STOPS), st.sampled_from(STOPS), st.sampled_from([" ", ", ", "! "]))
def test_two_stops_are_a_stop_in_whatever_languages(one: str, other: str, between: str) -> None:
    assert is_stop(f"{one}!{between}{other}")


@given(st.text() | st.sampled_from(STOPS).flatmap(lambda text: st.text(f"{text} ,.ﬆ①")))
def test_the_compatibility_form_of_a_text_stops_as_the_text_does(text: str) -> None:
    assert is_stop(text) == is_stop(unicodedata.normalize("NFKC", text))


def test_as_much_as_an_instruction_may_have_is_heard_and_no_more() -> None:
    assert is_stop("stop " * 100) and not is_stop("stop " * 101)
    assert not is_stop("no " * 166)


@pytest.mark.parametrize(
    "damage", [None, "", "en: stop", "en: {stop: [stop]}", "en: {stop: stop", "\xff"]
)
def test_without_its_words_nothing_is_taken_for_an_instruction(
    damage: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instruction could be a stop: what cannot tell must not follow it."""
    (tmp_path / "config").mkdir()
    if damage is not None:
        (tmp_path / "config/stop_words.yaml").write_text(damage, "latin-1")
    monkeypatch.setattr(instruction, "share", lambda: tmp_path)
    instruction._stop_words.cache_clear()
    try:
        with pytest.raises(UserError, match=r"stop_words\.yaml cannot be read"):
            is_stop("find the red chair")
    finally:
        instruction._stop_words.cache_clear()


def test_a_comma_too_many_between_stop_words_changes_none() -> None:
    listed = "halt, stop now, s t o p, ⛔, 10"
    assert instruction._phrases(listed) == {"halt", "stop now", "stop"}
    for odd in (f",{listed},", listed.replace(",", " ,\n,, "), f"{listed} ,"):
        assert instruction._phrases(odd) == instruction._phrases(listed)


@given(st.text(UNSEEN + BLANKS + "\u3164\u115f\u1160\uffa0\u2800\u034f\u0301", max_size=9))
def test_a_text_that_nobody_sees_is_refused_as_empty(text: str) -> None:
    with pytest.raises(UserError, match="the instruction is empty"):
        check_instruction(text)


@given(st.data())
def test_an_instruction_is_the_same_with_invisible_characters_and_blanks(
    data: st.DataObject,
) -> None:
    words = ["go", "to", "the", "café", "Tür"]
    for number, word in enumerate(words):
        place = data.draw(st.integers(0, len(word)))
        words[number] = word[:place] + data.draw(st.text(UNSEEN, max_size=2)) + word[place:]
    blank = data.draw(st.text(BLANKS, min_size=1, max_size=3))
    form = data.draw(st.sampled_from(["NFC", "NFD"]))
    text = unicodedata.normalize(form, blank + blank.join(words) + blank)
    assert normalized(text) == check_instruction(text) == "go to the café Tür"
    assert normalized(normalized(text)) == normalized(text) != normalized(text.upper())

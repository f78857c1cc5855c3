"""Decisions: both forms of request, the prompts that are made of them, and the answers, whose
probabilities are those of transformers on the same checkpoint."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import jpeg
from helpers.cloud.grpc_cloud import Cloud
from helpers.cloud.served_answers import TARGET, worker_of
from helpers.endpoint import MODEL, RunningEndpoint
from hypothesis import given
from hypothesis import strategies as st

from edge_cloud_spec import Decoder
from edge_cloud_spec.endpoint.api_error import ApiError
from edge_cloud_spec.endpoint.decisions import Chances, Decisions, read_decisions, read_systemone
from edge_cloud_spec.endpoint.server import DECISIONS, SYSTEMONE
from edge_cloud_spec.models.load import load
from edge_cloud_spec.request import Message, Picture
from edge_cloud_spec_lab.harness.reference import load_reference

PAGE = Path(__file__).parents[2] / "docs/endpoint.md"
ANY = ("--dialect", "any", "--device", "cpu", "--dtype", "float32", "--no-check")
CLOSE = 1e-4
SHOWN = {"<img>": {"type": "image", "data_base64": base64.b64encode(jpeg(1)).decode()}}
OTHER = base64.b64encode(jpeg(2)).decode()
ACTIONS = ("move forward small", "turn left small", "turn right medium", "stop")


def listed(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "instructions": "find the blue box", **more}


def choice(*values: Any, **more: Any) -> dict[str, Any]:
    return listed("choice", choices=[{"value": value} for value in values], **more)


def decisions(*questions: Any, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "a red box is ahead", "questions": [*questions], **more}


def systemone(**more: Any) -> dict[str, Any]:
    questions = {"next": {"type": "choice", "criteria": dict.fromkeys(ACTIONS)}}
    return {"model": MODEL, "state": "a red box is ahead", "questions": questions, **more}


# Requests


def read(body: dict[str, Any]) -> Decisions:
    reader = read_systemone if "state" in body else read_decisions
    return reader(json.dumps(body).encode(), (MODEL,))


CONTENTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.dictionaries(
    st.sampled_from("ab"), st.integers() | st.text(max_size=4) | st.none(), max_size=2
)
MAPPED = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("noul")},
        optional={
            "instructions": st.none() | CONTENTS,
            "criteria": st.none()
            | st.dictionaries(st.sampled_from(["true", "false"]), st.none() | CONTENTS),
        },
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("choice"),
            "criteria": st.dictionaries(st.text(max_size=5), st.none() | CONTENTS, min_size=1),
        },
        optional={"instructions": st.none() | CONTENTS},
    ),
    st.fixed_dictionaries(
        {"type": st.just("score"), "criteria": st.lists(CONTENTS, min_size=1, max_size=5)},
        optional={"instructions": st.none() | CONTENTS},
    ),
)


@given(CONTENTS, MAPPED)
def test_a_mapped_question_is_asked_as_transformers_pipeline_asks_it(
    state: Any, question: dict[str, Any]
) -> None:
    from transformers.decision import DECISION_PROMPT, DecisionConfig, Question
    from transformers.utils.chat_template_utils import _compile_jinja_template

    theirs = Question.from_request("q", question, DecisionConfig())
    text = _compile_jinja_template(DECISION_PROMPT).render(state=state, question=theirs)
    (ours,) = read(systemone(state=state, questions={"q": question})).questions
    assert ours.request.messages == (Message("user", (text,)),)
    assert ours.request.candidates == tuple(theirs.labels) and not ours.request.whole
    chances = Random(len(text)).sample(range(1, 99), len(theirs.options))
    probabilities = [each / sum(chances) for each in chances]
    own = read(systemone(state=state, questions={"q": question})).answer([np.log(probabilities)])
    told = own["answers"]["q"]
    assert told.pop("doubt") == pytest.approx(0.0, abs=1e-9)
    flat, expected = json.dumps(told, sort_keys=True), theirs.answer(probabilities)
    assert json.loads(flat) == approximately(json.loads(json.dumps(expected, sort_keys=True)))


def approximately(told: Any) -> Any:
    """The same, but for the last digits of its numbers."""
    if isinstance(told, dict):
        return {name: approximately(each) for name, each in told.items()}
    return pytest.approx(told, abs=1e-9) if isinstance(told, float) else told


def test_a_listed_question_follows_the_input_and_its_options_are_answers_as_written() -> None:
    shown = {"type": "input_image", "image_url": f"data:;base64,{SHOWN['<img>']['data_base64']}"}
    content = [
        shown,
        {"type": "input_json", "data": {"room": 3}},
        {"type": "input_text", "text": "!"},
    ]
    said = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": content}]
    which = choice("left", True, name="side")
    which["choices"][0]["description"] = "where the door is"
    asked = read(decisions(listed("predicate"), which, input=said))
    system, user = Message("system", ("be brief",)), (Picture.of(jpeg(1)), '{"room": 3}', "!")
    texts = (
        "\nIs this true?\nAnswer with Yes or No only.",
        "\n- left: where the door is\n- true\nAnswer with one of these only.",
    )
    for question, text in zip(asked.questions, texts, strict=True):
        last = Message("user", (*user, "\n\n", "find the blue box", text))
        assert question.request.messages == (system, last)
        assert question.request.whole and question.request.continues
    assert asked.questions[0].request.candidates == ("Yes", "No")
    assert asked.questions[1].request.candidates == ("left", "true")
    after = [*said, {"role": "assistant", "content": [{"type": "output_text", "text": "ok"}]}]
    (question,) = read(decisions(choice("a", "b"), input=after)).questions
    assert [message.role for message in question.request.messages[-2:]] == ["assistant", "user"]


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    (decisions(), "a list of 1 to 400", "questions"),
    (decisions(*[choice("a", "b")] * 401), "a list of 1 to 400", "questions"),
    (decisions(choice("a", "b"), stream=True), "'stream' is unknown here", "stream"),
    (decisions(choice("a", "b"), model="gpt-5"), "there is no model 'gpt-5'", "model"),
    (decisions(choice("a", "b"), input=[]), "input must be a text", "input"),
    (
        decisions(choice("a", "b"), input=[{"type": "function_call", "name": "go"}]),
        "must be a message of role",
        "input[0]",
    ),
    (
        decisions(choice("a", "b"), input=[{"role": "system", "content": [{"type": "x"}]}]),
        "only input_text, input_image and input_json",
        "input[0].content[0]",
    ),
    (decisions(choice("a")), "a list of 2 or more", "questions[0]"),
    (decisions(choice("a", "a")), "have the same text", "questions"),
    (decisions(choice("true", True)), "have the same text", "questions"),
    (decisions(choice("a", "")), "choices[1].value is empty", "questions[0].choices[1]"),
    (
        decisions(choice("a", 3)),
        "questions[0].choices[1].value must be a text, not a number",
        "questions[0].choices[1].value",
    ),
    (
        decisions(listed("choice", choices=["a", "b"])),
        "questions[0].choices[0] must be a JSON object",
        "questions[0].choices[0]",
    ),
    (decisions(choice(*map(str, range(65)))), "at most 64 options", "questions"),
    (decisions(choice("a", "b" * 257)), "256 characters", "questions"),
    (decisions(choice("a", "b", id="side")), "has 'id', which is not supported", "questions[0]"),
    (
        decisions(listed("score", levels=[{"label": True}] * 2)),
        "levels[0].label must be a text, not true or false",
        "questions[0].levels[0].label",
    ),
    (decisions(listed("noul")), "must be predicate, choice, score", "questions[0]"),
    (systemone(stop=1), "'stop' is unknown here", "stop"),
    (systemone(state=3), "state must be a text or JSON, not a number", "state"),
    (systemone(state=None), "state must be a text or JSON, not null", "state"),
    (systemone(state="x" * 2**18 + "x"), "at most 262144 characters", "state"),
    (systemone(questions={}), "questions must be 1 to 64", "questions"),
    (systemone(questions={"q": {"type": "predicate"}}), "must be of type noul", "questions"),
    (
        systemone(questions={"q": {"type": "score", "criteria": {}}}),
        "list of criteria",
        "questions",
    ),
    (
        systemone(questions={"q": {"type": "choice", "criteria": {}}}),
        "must be 1 to 26",
        "questions",
    ),
    (
        systemone(
            questions={"q": {"type": "choice", "criteria": dict.fromkeys(map(str, range(27)))}}
        ),
        "must be 1 to 26",
        "questions",
    ),
    (
        systemone(questions={"q": {"type": "noul", "criteria": {"maybe": "x"}}}),
        "has 'maybe', which is not supported",
        "questions['q'].criteria",
    ),
    (systemone(questions={"q": {"type": "noul", "x": 1}}), "has 'x'", "questions['q']"),
    (systemone(assets={str(n): SHOWN["<img>"] for n in range(5)}), "at most 4", "assets"),
    (systemone(assets={"": SHOWN["<img>"]}), "at most 4", "assets"),
    (systemone(assets={"x" * 65: SHOWN["<img>"]}), "64 characters", "assets"),
    (
        systemone(assets={"<img>": SHOWN["<img>"]["data_base64"]}),
        '{"data_base64": "..."}',
        "assets",
    ),
    (systemone(assets=SHOWN), "assets['<img>'] stands nowhere: write '<img>' in state", "assets"),
    (
        systemone(state="<img>-2", assets=SHOWN | {"<img>-2": {"data_base64": OTHER}}),
        "assets['<img>'] stands nowhere",
        "assets",
    ),
    (systemone(assets={"a": {"type": "audio"}}), "only an image is read", "assets"),
    (systemone(assets={"a": {"data_base64": "!"}}), "is no base64", "assets['a'].data_base64"),
]


@pytest.mark.parametrize(("body", "complaint", "param"), WRONG)
def test_what_cannot_be_asked_is_refused_by_name(
    body: dict[str, Any], complaint: str, param: str | None
) -> None:
    with pytest.raises(ApiError) as caught:
        read(body)
    error = caught.value
    assert complaint in str(error) and str(error).isprintable() and len(str(error)) < 400
    assert error.body["error"]["param"] == param
    assert error.status == (404 if "gpt" in complaint else 400)


def test_a_number_beyond_floats_is_refused() -> None:
    """JSON has it, and an answer that repeats it has not."""
    data = json.dumps(systemone(state={"far": 1})).replace("1}", "1e999}").encode()
    with pytest.raises(ApiError, match="state has a number beyond JSON's range"):
        read_systemone(data, (MODEL,))


# Answers, of the embedded pair


@dataclass(frozen=True)
class Served:
    endpoint: RunningEndpoint
    decoder: Decoder
    worker: Any
    reference: Any


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    worker = worker_of(*ANY)
    with (
        Cloud(worker) as cloud,
        Decoder(cloud.address) as decoder,
        RunningEndpoint(decoder) as endpoint,
    ):
        reference = load_reference(str(TARGET), load(str(TARGET), check=False))
        yield Served(endpoint, decoder, worker, reference)


def pipeline_of(reference: Any) -> Any:
    """transformers' own decision pipeline; its processor has no part for videos."""
    from transformers import AutoTokenizer, Qwen2VLImageProcessorPil, Qwen2VLProcessor
    from transformers.pipelines import DecisionPipeline

    class Pictures(Qwen2VLProcessor):  # type: ignore[misc] # untyped here
        def __init__(self, image_processor: Any = None, tokenizer: Any = None, **named: Any):
            super().__init__(image_processor, tokenizer, None, **named)

        @classmethod
        def get_attributes(cls) -> list[str]:
            return ["image_processor", "tokenizer"]

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    pictures = Qwen2VLImageProcessorPil.from_pretrained(TARGET)
    processor = Pictures(pictures, tokenizer, chat_template=tokenizer.chat_template)
    return DecisionPipeline(model=reference, tokenizer=tokenizer, processor=processor)


def test_a_mapped_question_is_answered_as_by_transformers_pipeline(served: Served) -> None:
    pipeline, random = pipeline_of(served.reference), Random(4)
    colours = ["red", "blue", "green", "yellow"]
    for place in range(4):
        words = random.sample(colours, 2)
        asset = {"type": "image", "data_base64": base64.b64encode(jpeg(place)).decode()}
        body = {
            "state": random.choice(["<img>", {"seen": "<img>", "goal": words[0]}, "no picture"]),
            "questions": {
                "next": {"type": "choice", "instructions": f"find the {words[0]} box"}
                | {"criteria": dict.fromkeys(random.sample(ACTIONS, 3), words[1])},
                "far": {"type": "score", "criteria": ["here", "near", "far"][: 2 + place % 2]},
            },
        }
        if "<img>" in str(body["state"]):
            body["assets"] = {"<img>": asset}
        with torch.inference_mode():
            judged = pipeline(body)
        status, _, answer = served.endpoint.post({"model": MODEL, **body}, SYSTEMONE)
        assert status == 200 and answer["model"] == MODEL, answer
        told = answer["answers"]
        assert told["next"]["choice"] == judged["next"]["choice"]
        for name in body["questions"]:
            assert told[name].keys() - judged[name].keys() == {"doubt"}
            assert told[name]["probabilities"] == pytest.approx(
                judged[name]["probabilities"], abs=CLOSE
            )
            assert told[name]["confidence"] == pytest.approx(judged[name]["confidence"], abs=CLOSE)
        assert told["far"]["score"] == pytest.approx(judged["far"]["score"], abs=CLOSE)
        assert told["far"]["legend"] == judged["far"]["legend"]


def test_the_openai_package_asks_and_reads_all_kinds_of_questions(served: Served) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=served.endpoint.url, api_key="none", max_retries=0)
    shown = {"type": "input_image", "image_url": f"data:;base64,{SHOWN['<img>']['data_base64']}"}
    levels = [{"label": label} for label in ("near", "far away")]
    told = client.decisions.create(
        model=MODEL,
        input=[{"role": "user", "content": [shown, {"type": "input_text", "text": "look"}]}],
        questions=[
            listed("predicate", name="seen"),
            choice(*ACTIONS, "turn left"),
            listed("score", levels=levels, name="how far"),
        ],
    )
    seen, action, far = told.answers
    assert (seen.type, seen.name, far.name, action.name) == ("predicate", "seen", "how far", None)
    assert 0 < seen.probability < 1 and far.probabilities[1].label == "far away"
    assert far.score == pytest.approx(far.probabilities[1].probability)
    assert sum(each.probability for each in action.probabilities) == pytest.approx(1)
    # By the options' own texts, one of which begins with another.
    asked = (
        Picture.of(jpeg(1)),
        "look\n\nfind the blue box\n- " + "\n- ".join([*ACTIONS, "turn left"]),
    )
    ask = Message("user", (*asked, "\nAnswer with one of these only."))
    chances = Chances.of(served.decoder.score([ask], [*ACTIONS, "turn left"]))
    assert [each.probability for each in action.probabilities] == list(chances.probabilities)
    assert action.doubt == chances.doubt and 0.5 < chances.doubt <= 1
    assert action.choice == [*ACTIONS, "turn left"][chances.best]
    with pytest.raises(openai.BadRequestError, match="two options"):
        client.decisions.create(model=MODEL, input="x", questions=[choice("a", "a")])


def test_the_pages_examples_are_answered_in_both_forms(served: Served) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=served.endpoint.url, api_key="none", max_retries=0)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ours = [block for block in blocks if "questions" in block]
    given = {"client": client, "base64": base64, "jpeg": jpeg(1)}
    given["data_url"] = f"data:image/jpeg;base64,{SHOWN['<img>']['data_base64']}"
    answers = []
    for block in ours:
        exec(block, names := dict(given))  # the last lines of each read its answers
        answers.append(names["answer"])
    listed_form, mapped_form = answers
    assert [each.type for each in listed_form.answers] == ["choice", "score", "predicate"]
    assert [each["type"] for each in mapped_form["answers"].values()] == ["choice", "score", "noul"]
    assert {*mapped_form["answers"]["far"]["legend"].values()} == {"near", "in this room", "far"}


def test_later_questions_read_only_what_they_add_to_the_first(served: Served) -> None:
    memory = served.worker.kv_memory
    before = memory.prefix_rows
    body = decisions(*[choice(f"{number}", "none") for number in range(4)])
    body["input"] = "a red box is ahead, and a blue one behind it; " * 8
    status, _, answer = served.endpoint.post(body, DECISIONS)
    assert status == 200 and len(answer["answers"]) == 4
    assert memory.prefix_rows - before > 3 * 100

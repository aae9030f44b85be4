"""Nine kinds of conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Turns = list[dict[str, Any]]
ASK = {"role": "user", "content": "How warm is it in Oslo?"}
ANSWER = {"role": "assistant", "content": "It is 4 degrees."}
THANKS = {"role": "user", "content": "Thank you!"}
WELCOME = {"role": "assistant", "content": "You are welcome."}
CALL = {"id": "call00001", "type": "function"}
CALL |= {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}  # type: ignore[dict-item]
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {
    "role": "tool",
    "name": "weather",
    "tool_call_id": "call00001",
    "content": '{"degrees": 4}',
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The temperature in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
THOUGHT = {**ANSWER, "reasoning_content": "Oslo is in Norway."}
IMAGE = {"type": "image_url", "image_url": {"url": "a.png"}}

CONVERSATIONS: Mapping[str, Turns] = {
    "plain": [ASK, ANSWER],
    "system": [{"role": "system", "content": "Be brief."}, ASK, ANSWER],
    "several turns": [ASK, ANSWER, THANKS, WELCOME],
    "tool calls": [ASK, CALLS],
    "tool results": [ASK, CALLS, RESULT, ANSWER],
    "reasoning": [ASK, THOUGHT, THANKS, {**WELCOME, "reasoning_content": "They are polite."}],
    "image": [{"role": "user", "content": [{"type": "text", "text": "See?"}, IMAGE]}, ANSWER],
    "same role twice": [ASK, {"role": "user", "content": "And in Rome?"}, ANSWER],
    "empty answer": [ASK, {"role": "assistant", "content": ""}, THANKS, WELCOME],
}
WITH_TOOLS = ("tool calls", "tool results")

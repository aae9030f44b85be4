"""Chat templates in the style of well-known models: their markers, order and conditions, written
anew and no longer than that takes. `«` and `»` stand around what the model is to say."""

from __future__ import annotations

from collections.abc import Mapping

GENERATION, ENDGENERATION = "{% generation %}", "{% endgeneration %}"
ONLY_PAIRS = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
)
SYSTEM_FIRST = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
)


def turns(user: str, answer: str, *, other: str = "", asks: str = "", before: str = "") -> str:
    """A loop over turns: text for one of the user, the assistant and another role."""
    rest = f"{{% else %}}{other}" if other else ""
    return (
        before + "{% for m in messages %}{% if m.role == 'assistant' %}" + answer + "{% elif "
        "m.role == 'user' %}" + user + rest + "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}" + asks + "{% endif %}"
    )


def headed(head: str, end: str, *, before: str = "", trim: bool = False) -> str:
    """Every turn after a head with its role, and before the same end."""
    text = "{{ m.content | trim }}" if trim else "{{ m.content }}"
    named, asks = (head.replace("ROLE", role) for role in ("{{ m.role }}", "assistant"))
    answer = f"{named}«{text}{end}»\n"
    return turns(
        f"{named}{text}{end}\n", answer, other=f"{named}{text}{end}\n", asks=asks, before=before
    )


CHATML, IM_END = "<|im_start|>ROLE\n", "<|im_end|>"
HERMES_CALLS = (
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n{{ {'name': c.function.name, 'arguments': "
    "c.function.arguments} | tojson }}\n</tool_call>{% endfor %}"
)
HERMES_TOOLS = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
)
HERMES_RESULT = (
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
    "</tool_response><|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endif %}"
)
THOUGHTS = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
LAST_THOUGHTS = (
    "{% if m.reasoning_content and loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% endif %}"
)


def hermes(thoughts: str = "", asks: str = "<|im_start|>assistant\n", before: str = "") -> str:
    """ChatML with tools as Hermes and Qwen have them."""
    return turns(
        "<|im_start|>user\n{{ m.content }}<|im_end|>\n",
        f"<|im_start|>assistant\n«{thoughts}{{{{ m.content }}}}{HERMES_CALLS}<|im_end|>»\n",
        other=HERMES_RESULT,
        asks=asks,
        before=before + HERMES_TOOLS,
    )


DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant."
    "<|im_end|>\n{% endif %}"
)
LLAMA3 = "<|start_header_id|>ROLE<|end_header_id|>\n\n"
DATE = (
    "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    "{{ system }}<|eot_id|>"
)
MISTRAL_CALLS = (
    "{% if m.tool_calls %}«[TOOL_CALLS][{% for c in m.tool_calls %}{{ {'name': c.function.name, "
    "'arguments': c.function.arguments, 'id': c.id} | tojson }}{% endfor %}]</s>»"
    "{% else %}« {{ m.content }}</s>»{% endif %}"
)
MISTRAL_RESULT = (
    "{% if m.role == 'tool' %}[TOOL_RESULTS]{{ {'content': m.content, 'call_id': m.tool_call_id} "
    "| tojson }}[/TOOL_RESULTS]{% endif %}"
)
TOOLS_LINE = "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"

TEMPLATES: Mapping[str, str] = {
    "ChatML": headed(CHATML, IM_END),
    "ChatML, trimmed": headed(CHATML, IM_END, trim=True),
    "InternLM2": headed(CHATML, IM_END, before="<s>"),
    "Qwen 2": headed(CHATML, IM_END, before=DEFAULT_SYSTEM),
    "Hermes 3": hermes(before="<s>"),
    "Qwen 2.5": hermes(before=DEFAULT_SYSTEM),
    "Qwen 3": hermes(LAST_THOUGHTS),
    "Qwen 3, no thoughts in the header": hermes(
        THOUGHTS, asks="<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ),
    "QwQ": hermes(LAST_THOUGHTS, asks="<|im_start|>assistant\n<think>\n"),
    "SmolLM 3": hermes(THOUGHTS, before=DEFAULT_SYSTEM),
    "LFM2": headed(
        CHATML,
        IM_END,
        before="<s>{% if tools %}<|im_start|>system\nList of tools: {{ tools | tojson }}"
        "<|im_end|>\n{% endif %}",
    ),
    "Llama 2": SYSTEM_FIRST
    + turns(
        "<s>[INST] {% if loop.first and system %}<<SYS>>\n{{ system }}\n<</SYS>>\n\n{% endif %}"
        "{{ m.content | trim }} [/INST]",
        "« {{ m.content | trim }} </s>»",
        before="{% for m in messages %}" + ONLY_PAIRS + "{% endfor %}",
    ),
    "Mistral v1": turns(
        "[INST] {{ m.content }} [/INST]",
        "« {{ m.content }}</s>»",
        before="<s>" + NO_SYSTEM + "{% for m in messages %}" + ONLY_PAIRS + "{% endfor %}",
    ),
    "Mistral v3": "<s>"
    + SYSTEM_FIRST
    + turns(
        "{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}"
        "{% if m == asked[-1] %}" + TOOLS_LINE + "{% endif %}"
        "[INST] {% if system and loop.first %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]",
        MISTRAL_CALLS,
        other=MISTRAL_RESULT,
    ),
    "Mistral v7": "<s>{% if messages[0].role == 'system' %}[SYSTEM_PROMPT] "
    "{{ messages[0].content }}[/SYSTEM_PROMPT]{% endif %}"
    + TOOLS_LINE
    + turns("[INST] {{ m.content }}[/INST]", MISTRAL_CALLS, other=MISTRAL_RESULT),
    "Llama 3": turns(
        "<|start_header_id|>user<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n«{{ m.content | trim }}<|eot_id|>»",
        other="<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content | trim }}<|eot_id|>",
        asks="<|start_header_id|>assistant<|end_header_id|>\n\n",
        before="<s>",
    ),
    "Llama 3.1": "<s>"
    + SYSTEM_FIRST
    + DATE
    + turns(
        "<|start_header_id|>user<|end_header_id|>\n\n{% if tools and loop.first %}"
        "{{ tools | tojson }}\n\n{% endif %}{{ m.content | trim }}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n{% if m.tool_calls %}"
        "{% if m.tool_calls | length > 1 %}{{ raise_exception('one tool call only') }}{% endif %}"
        "{% set f = m.tool_calls[0].function %}«{{ {'name': f.name, 'parameters': "
        "f.arguments} | tojson }}<|eot_id|>»{% else %}«{{ m.content | trim }}<|eot_id|>»"
        "{% endif %}",
        other="<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content }}<|eot_id|>",
        asks="<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "Llama 3.2": "<s>"
    + SYSTEM_FIRST
    + DATE
    + turns(
        "<|start_header_id|>user<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n«{{ m.content | trim }}<|eot_id|>»",
        asks="<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "Gemma": turns(
        "<start_of_turn>user\n{{ m.content | trim }}<end_of_turn>\n",
        "<start_of_turn>model\n«{{ m.content | trim }}<end_of_turn>»\n",
        asks="<start_of_turn>model\n",
        before="<s>" + NO_SYSTEM + "{% for m in messages %}" + ONLY_PAIRS + "{% endfor %}",
    ),
    "Gemma 3": "<s>"
    + SYSTEM_FIRST
    + turns(
        "<start_of_turn>user\n{% if loop.first and system %}{{ system }}\n\n{% endif %}"
        "{{ m.content | trim }}<end_of_turn>\n",
        "<start_of_turn>model\n«{{ m.content | trim }}<end_of_turn>»\n",
        asks="<start_of_turn>model\n",
        before="{% for m in messages %}" + ONLY_PAIRS + "{% endfor %}",
    ),
    "Phi 3": turns(
        "<|user|>\n{{ m.content }}<|end|>\n",
        "<|assistant|>\n«{{ m.content }}<|end|>»\n",
        asks="<|assistant|>\n",
    ),
    "Phi 3.5": headed("<|ROLE|>\n", "<|end|>"),
    "Phi 4": turns(
        "<|im_start|>user<|im_sep|>{{ m.content }}<|im_end|>",
        "<|im_start|>assistant<|im_sep|>«{{ m.content }}<|im_end|>»",
        other="<|im_start|>system<|im_sep|>{{ m.content }}<|im_end|>",
        asks="<|im_start|>assistant<|im_sep|>",
    ),
    "Phi 4 mini": turns(
        "<|user|>{{ m.content }}<|end|>",
        "<|assistant|>«{{ m.content }}<|end|>»",
        other="<|{{ m.role }}|>{{ m.content }}<|end|>",
        asks="<|assistant|>",
    ),
    "DeepSeek V2": turns(
        "User: {{ m.content }}\n\n",
        "Assistant:« {{ m.content }}</s>»",
        other="{{ m.content }}\n\n",
        asks="Assistant:",
        before="<s>",
    ),
    "DeepSeek V3": turns(
        "<|User|>{{ m.content }}",
        "<|Assistant|>{% if m.tool_calls %}«{{ m.content }}<|tool_calls|>"
        "{% for c in m.tool_calls %}{{ c.function.name + '\n' + c.function.arguments }}"
        "{% endfor %}</s>»{% else %}"
        "«{{ m.content }}</s>»{% endif %}",
        other="{% if m.role == 'tool' %}<|tool_output|>{{ m.content }}{% else %}{{ m.content }}"
        "{% endif %}",
        asks="<|Assistant|>",
        before="<s>{% if tools %}{{ tools | tojson }}{% endif %}",
    ),
    "DeepSeek R1": turns(
        "<|User|>{{ m.content }}",
        "<|Assistant|>«{{ m.content.split('</think>') | last }}</s>»",
        other="{{ m.content }}",
        asks="<|Assistant|><think>\n",
        before="<s>",
    ),
    "Granite 3": turns(
        "<|start_of_role|>user<|end_of_role|>{{ m.content }}<|end_of_text|>\n",
        "<|start_of_role|>assistant<|end_of_role|>«{{ m.content }}<|end_of_text|>»\n",
        other="<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n",
        asks="<|start_of_role|>assistant<|end_of_role|>",
    ),
    "Granite 3.3": turns(
        "<|start_of_role|>user<|end_of_role|>{{ m.content }}<|end_of_text|>\n",
        "<|start_of_role|>assistant<|end_of_role|>«{{ m.content }}<|end_of_text|>»\n",
        other="<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n",
        asks="<|start_of_role|>assistant<|end_of_role|>",
        before="{% if tools %}<|start_of_role|>tools<|end_of_role|>{{ tools | tojson }}"
        "<|end_of_text|>\n{% endif %}",
    ),
    "Command-R": turns(
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>«{{ m.content | trim }}<|END_OF_TURN_TOKEN|>»",
        other="<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{ m.content }}<|END_OF_TURN_TOKEN|>",
        asks="<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        before="<s>",
    ),
    "Zephyr": headed("<|ROLE|>\n", "</s>"),
    "TinyLlama": turns(
        "<|user|>\n{{ m.content }}</s>\n",
        "<|assistant|>\n«{{ m.content }}</s>»\n",
        other="<|system|>\n{{ m.content }}</s>\n",
        asks="<|assistant|>\n",
    ),
    "Vicuna": turns(
        "USER: {{ m.content }} ",
        "ASSISTANT:« {{ m.content }}</s>»",
        other="{{ m.content }} ",
        asks="ASSISTANT:",
    ),
    "Alpaca": turns(
        "### Instruction:\n{{ m.content }}\n\n",
        "### Response:\n«{{ m.content }}</s>»\n\n",
        other="{{ m.content }}\n\n",
        asks="### Response:\n",
    ),
    "GLM 4": turns(
        "<|user|>\n{{ m.content }}",
        "<|assistant|>\n«{{ m.content }}»",
        other="{% if m.role == 'tool' %}<|observation|>\n{{ m.content }}{% else %}<|system|>\n"
        "{{ m.content }}{% endif %}",
        asks="<|assistant|>\n",
        before="[gMASK]<sop>",
    ),
    "OpenChat": turns(
        "GPT4 Correct User: {{ m.content }}<|end_of_turn|>",
        "GPT4 Correct Assistant:« {{ m.content }}<|end_of_turn|>»",
        other="{{ m.content }}<|end_of_turn|>",
        asks="GPT4 Correct Assistant:",
        before="<s>",
    ),
    "Falcon": turns(
        "User: {{ m.content }}\n\n",
        "Assistant:« {{ m.content }}</s>»\n\n",
        other="{{ m.content }}\n\n",
        asks="Assistant:",
    ),
    "Baichuan 2": turns(
        "<reserved_106>{{ m.content }}",
        "<reserved_107>«{{ m.content }}</s>»",
        other="{{ m.content }}",
        asks="<reserved_107>",
    ),
    "gpt-oss": turns(
        "<|start|>user<|message|>{{ m.content }}<|end|>",
        "<|start|>assistant«{% if m.thinking and loop.last %}<|channel|>analysis<|message|>"
        "{{ m.thinking }}<|end|><|start|>assistant{% endif %}<|channel|>final<|message|>"
        "{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}»",
        other="<|start|>system<|message|>{{ m.content }}<|end|>",
        asks="<|start|>assistant",
    ),
    "OLMo 2": turns(
        "<|user|>\n{{ m.content }}\n",
        "<|assistant|>\n«{{ m.content }}</s>»{% if not loop.last %}\n{% endif %}",
        other="<|system|>\n{{ m.content }}\n",
        asks="<|assistant|>\n",
        before="<s>",
    ),
    "EXAONE": turns(
        "[|user|]{{ m.content }}\n",
        "[|assistant|]«{{ m.content }}[|endofturn|]»\n",
        other="[|system|]{{ m.content }}[|endofturn|]\n",
        asks="[|assistant|]",
    ),
    "StableLM 2": headed("<|ROLE|>\n", "<|endoftext|>"),
}


def marked(template: str) -> str:
    """The template with transformers' marks around what the model is to say. A tag takes
    the line's end behind it away, an expression does not."""
    return template.replace("«", GENERATION).replace("»", ENDGENERATION + "{{ '' }}")


def unmarked(template: str) -> str:
    """The template as a model has it."""
    return template.replace("«", "").replace("»", "")

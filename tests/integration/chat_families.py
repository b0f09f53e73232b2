"""Chat templates written after the conventions of well-known model families, and conversations for them.

The texts are our own; each uses the language features that its family's published template uses.
"""

from pathlib import Path

TEMPLATES = Path(__file__).resolve().parents[1] / "golden" / "text" / "templates"
FAMILIES = {path.stem: path.read_bytes().decode() for path in sorted(TEMPLATES.glob("*.jinja"))}

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Météo <now> & \"later\"", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": " Where "}, "days": {
            "type": "integer", "default": 3}, "unit": {"type": "string", "enum": ["c", "f"]},
            "tags": {"type": "array", "items": {"type": "string"}}, "exact": {"type": "boolean", "default": False}},
        "required": ["city"]}}},
    {"type": "function", "function": {"name": "noop", "description": "Nothing.", "parameters": {
        "type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "union", "description": "它 takes either", "parameters": {
        "type": "object", "properties": {"v": {"type": ["string", "number"]}}}, "return": {"type": "string"}}}]

CALL = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {
    "city": "Zürich", "days": 2, "ratio": 0.1, "none": None, "deep": [{"a": []}, {}]}}}

CONVERSATIONS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Hi there \n"}],
    [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3 <|im_end|> 🦙"}],
    [{"role": "system", "content": "Sys /no_think"}, {"role": "user", "content": "q"},
     {"role": "assistant", "content": "<think>\nhm\n</think>\n\nanswer"}, {"role": "user", "content": "next"},
     {"role": "assistant", "content": "done"}],
    [{"role": "user", "content": "weather?"}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
     {"role": "tool", "tool_call_id": "call00001", "content": "{\"t\": 3}"}, {"role": "assistant", "content": "3 degrees"}],
    [{"role": "user", "content": "both"}, {"role": "assistant", "content": "", "tool_calls": [
        CALL, {"id": "call00002", "type": "function", "function": {"name": "noop", "arguments": {}}}]},
     {"role": "tool", "tool_call_id": "call00001", "content": "a"}, {"role": "tool", "tool_call_id": "call00002", "content": "b"}],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "user", "content": [{"type": "text", "text": " parts "}, {"type": "image"}]}],
    [{"role": "system", "content": ""}, {"role": "user", "content": "x\r\ny\tz\u00a0é"}, {"role": "assistant", "content": " y "}],
    [],
]

"""What may need a change for another command line or other metric names."""


CLI = {  # verb -> argument list; {luna} {model_file} {file} {dir} {url} ... are filled in
    "tokenize":       ["{luna}", "tokenize", "--model", "{model_file}"],
    "tokenize_plain": ["{luna}", "tokenize", "--model", "{model_file}", "--no-special"],
    "tokenize_json":  ["{luna}", "tokenize", "--model", "{dir}"],        # a folder with tokenizer.json
    "template":       ["{luna}", "template", "--model", "{model_file}"],
    "template_text":  ["{luna}", "template", "--template", "{file}"],
    "check":          ["{luna}", "check", "{file}"],
    "inspect":        ["{luna}", "inspect", "{file}"],
    "plugin":         ["{luna}", "plugins", "why", "{file}"],             # optional: --have plugin
    "bench":          ["{luna}", "bench", "--url", "{url}", "--requests", "{n}", "--concurrency", "{c}", "--json"],
    "bench_rate":     ["{luna}", "bench", "--url", "{url}", "--requests", "{n}", "--rate", "{rate}", "--json"],
}
OPTIONAL = {"plugin", "bench", "bench_rate"}          # off unless named with --have
BENCH_KEYS = {  # dotted paths in the JSON that the bench verb prints
    "ok": "requests.ok", "failed": "requests.failed", "output_tokens": "output_tokens",
    "ttft_p50_ms": "ttft_ms.p50", "latency_p50_ms": "latency_ms.p50", "latency_p99_ms": "latency_ms.p99",
    "latency_max_ms": "latency_ms.max", "tokens_from": "tokens_from",
}
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "models": "/v1/models",
         "health": "/health", "metrics": "/metrics"}
METRICS = {  # role -> pattern of the metric name
    "running": r"(requests?|slots?|sequences?)_(running|active|processing|in_flight)$",
    "waiting": r"(requests?|sequences?)_(waiting|queued|deferred)$",
    "kv_used": r"kv_?(cache)?_(blocks?|tokens?|pages?)_used$|kv_cache_usage(_ratio|_perc)?$",
    "prompt_tokens": r"prompt_tokens_total$",
    "generated_tokens": r"(generation|generated|completion|predicted|output)_tokens_total$",
    "requests": r"requests_total$",
}
NO_CACHE = {"cache_salt": "{nonce}"}       # fields that keep a request out of the prefix cache
HEALTH_SECONDS = 10                        # the server must answer /health within this after each case
CHILD_AS_GB = 64                           # address-space limit of the commands run here
CLI_SECONDS = 20

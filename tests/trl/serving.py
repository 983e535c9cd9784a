"""What TRL's own rollout worker speaks to: the part of vLLM's HTTP interface that it uses, over a tiny model.

The worker uses nothing else of vLLM; it only asks, when it is made, whether that is installed. Weights come by HTTP as well,
where TRL sends them from GPU to GPU.
"""

import io
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests
import tiny
import torch
from datasets import Dataset
from trl.experimental.async_grpo import async_rollout_worker

LONGEST = 32


def tokenizer():
    """Return the tiny tokenizer with a chat that TRL's worker can read: an answer follows `=`."""
    made = tiny.tokenizer()
    made.chat_template = tiny.TEMPLATE + "="
    answer = {"close_pattern": "<eos>", "content": "text"}
    made.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "=",
        "fields": {"content": answer},
    }
    return made


def chats(count=200):
    """Return prompts as messages, each once."""
    texts = tiny.prompts(count)["prompt"]
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in texts]})


def generate(model, prompt, *, max_tokens, seed):
    """Return tokens, drawn one by one, and their log-probs."""
    chance, tokens, logprobs = torch.Generator().manual_seed(seed), list(prompt), []
    while len(logprobs) < max_tokens and tokens[-1] != 1:
        with torch.no_grad():
            scores = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
        tokens.append(int(torch.multinomial(scores.exp(), 1, generator=chance)))
        logprobs.append(float(scores[tokens[-1]]))
    return tokens[len(prompt) :], logprobs


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        known = {"/health": {}, "/v1/models": {"data": [{"max_model_len": LONGEST}]}}
        self._answer(known.get(self.path))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            if self.path == "/weights":
                self.server.model.load_state_dict(torch.load(io.BytesIO(body)), strict=False)
                self._answer({})
            elif self.path == "/v1/completions":
                asked = json.loads(body)
                assert asked["temperature"] == 1
                self.server.asked.append(asked["prompt"])
                tokens, logprobs = generate(
                    self.server.model, asked["prompt"], max_tokens=asked["max_tokens"], seed=asked["seed"]
                )
                self._answer({"choices": [{"token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}]})
            else:
                self._answer(None)

    def _answer(self, answer):
        data = json.dumps(answer or {}).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextmanager
def serving():
    """Serve a tiny model; give the server, which has its `url`, and the prompts that it was `asked`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.model, server.lock, server.asked = tiny.model(), threading.Lock(), []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class HttpTransfer:
    """Sends the trainer's weights to the server."""

    def __init__(self, url):
        self.url = url

    def send_weights(self, iterator):
        file = io.BytesIO()
        torch.save({name: value.clone() for name, value in iterator}, file)
        requests.post(f"{self.url}/weights", data=file.getvalue(), timeout=60).raise_for_status()

    init_weight_transfer = pause = resume = destroy = lambda self: None


def without_vllm():
    """Let TRL make its worker where vLLM is not installed."""
    async_rollout_worker.is_vllm_available = lambda: True

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import inferdoc.engine.blocks, inferdoc.engine.config, inferdoc.engine.kv_manager, inferdoc.engine.request
import inferdoc.engine.scheduler, inferdoc.engine.steplog
assert "numpy" not in sys.modules
from inferdoc.engine.engine import Engine

class Clock:
    time = 0.0
    def now(self):
        return self.time
    def sleep_until(self, when):
        self.time = when

class Runner:
    def configure(self, config):
        pass
    def execute(self, batch):
        clock.time += 1.0
        return [7] * sum(row.samples for row in batch.rows)

clock = Clock()
config = inferdoc.engine.config.EngineConfig(
    max_model_len=32, num_kv_blocks=9, block_size=4, enable_prefix_caching=True
)
requests = [inferdoc.engine.request.Request(i, [1] * 9, 3, arrival_s=2.0 * i) for i in range(3)]
result = Engine(Runner(), config, clock).run(requests)
try:
    import torch
except ModuleNotFoundError:
    print(len(result.steps), *([getattr(r, name) for r in requests] for name in ("output", "num_cached", "e2e_s")))
"""


def test_scheduler_kv_and_loop_run_where_torch_is_not_installed():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"7 {[[7, 7, 7]] * 3} [0, 8, 8] [3.0, 3.0, 3.0]"

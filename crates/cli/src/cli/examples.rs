//! What `--help` shows of each command in use.

pub const DEVICES: &str = "Examples:
  trifuse devices
  trifuse devices --backend wgpu:1 --json";

pub const DEMO: &str = "Examples:
  trifuse demo
  trifuse demo my-adapters/ --backend cpu";

pub const COMPRESS: &str = "Examples:
  trifuse compress adapters/ -o all.s2lc                       a fifth of the bytes
  trifuse compress a/rust mine=b/rust -o two.s2lc              a name for one of two alike
  trifuse compress adapters/ -o all.s2lc --min-cosine 0.99     as many bytes as that takes
  trifuse compress adapters/ -o all.s2lc --max-ratio 12 --calibrate texts.txt --model org/model";

pub const DECOMPRESS: &str = "Examples:
  trifuse decompress all.s2lc -o adapters/
  trifuse decompress all.s2lc -o one/ --adapter rust --dtype f16";

pub const BUNDLE: &str = "Examples:
  trifuse bundle list all.s2lc
  trifuse bundle add all.s2lc new/sqlite mine=other/rust
  trifuse bundle remove all.s2lc rust -o fewer.s2lc
  trifuse bundle rename all.s2lc rust rust-2024";

pub const INSPECT: &str = "Examples:
  trifuse inspect adapters/rust
  trifuse inspect all.s2lc --adapter rust";

pub const EMBED: &str = "Examples:
  trifuse embed lines.jsonl --model org/model -o vectors.npy
  trifuse embed lines.jsonl --model model/ --adapters all.s2lc --adapter rust -o vectors.jsonl
  echo '{\"text\": \"one line\", \"adapter\": \"rust\"}' | trifuse embed --model model/ --adapters adapters/";

#[cfg(feature = "serve")]
pub const SERVE: &str = "Examples:
  trifuse serve --model org/model --adapters all.s2lc
  trifuse serve --model model/ --adapters adapters/ --listen 0.0.0.0:8000 --api-key-file keys
  curl localhost:8000/v1/embeddings -H 'content-type: application/json' -d '{\"model\": \"rust\", \"input\": \"one text\"}'";

#[cfg(feature = "serve")]
pub const LOAD: &str = "Examples:
  trifuse load http://localhost:8000 --rate 200 --adapters mixed --check
  trifuse load http://localhost:8000 --rate 100,200,400 --seconds 30 --picture latency.svg --json > load.json
  trifuse load http://localhost:8000 --route chat --stream --concurrency 16 --model name
  trifuse load http://localhost:8000 --route attention --sets 128 --concurrency 128 --check";

pub const GENERATE: &str = "Examples:
  trifuse generate --model model.gguf \"The capital of France is\"
  trifuse generate --model org/model --temperature 0.8 --top-p 0.95 --seed 7 \"Once upon a time\"
  trifuse generate --model model/ --max-tokens 1024 --stop '###' - < prompt.txt";

pub const CHAT: &str = "Examples:
  trifuse chat --model model.gguf
  trifuse chat --model org/model --system \"You answer in one sentence.\" --temperature 0.7";

pub const EVAL: &str = "Examples:
  trifuse eval --model model.gguf text.txt
  trifuse eval --model org/model --documents lines --window 1024 --windows 16 c4.txt --json
  trifuse eval --baseline-model org/model --model free --model aligned wiki.txt c4.txt     KL and nats against the baseline, one table";

pub const SHRINK: &str = "Examples:
  trifuse shrink org/model -o smaller --keep 0.9 --calibrate wiki.txt --calibrate web.txt
  trifuse shrink model.gguf -o smaller --keep 0.9 --ranks knapsack --calibrate wiki.txt --tokens 65536 --leave v_proj
  trifuse shrink org/model -o smaller --keep 0.8 --budget time --profile times.json --mix decode1:.5,prefill512:.5 --calibrate wiki.txt
  trifuse shrink org/model -o smaller --keep 0.8 --factors two-sided --moments moments.safetensors --dtype bf16";

pub const PROFILE: &str = "Examples:
  trifuse profile org/model -o times.json
  trifuse profile config.json -o times.json --ranks 64..1024:8 --rows 1,512 --dtype bf16";

pub const REPAIR: &str = "Examples:
  trifuse repair smaller -o repaired --to 8
  trifuse repair smaller -o repaired --to recommended";

pub const VERIFY: &str = "Examples:
  trifuse verify --backend cpu
  trifuse verify --case attention/ --backend wgpu
  trifuse verify --vectors cases/";

pub const BENCH: &str = "Examples:
  trifuse bench attention --quick
  trifuse bench attention --sizes 1x32/8x2048x128 --causal     your own: sequences, heads, tokens, elements of a head
  trifuse bench linear --sizes 16x4096x11008 --dtype bf16 --json > before.json
  trifuse bench linear --list
  trifuse bench compare before.json after.json
  trifuse bench report before.json --pictures pictures/";

pub const KERNELS: &str = "Examples:
  trifuse kernels
  trifuse kernels --arch sm_90a --op attention
  trifuse kernels --arch sm_80,sm_90a -o all.pack";

pub const COMPLETIONS: &str = "Examples:
  trifuse completions bash > ~/.local/share/bash-completion/completions/trifuse
  trifuse completions zsh > ~/.zfunc/_trifuse";

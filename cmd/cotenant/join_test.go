package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestServedName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mine")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, name := range []string{"a.Q4_1.gguf", "b.safetensors"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"": "cotenant-tasks-3m", "Qwen/Qwen3-0.6B": "Qwen/Qwen3-0.6B", "../mine": "mine", ".": "mine", "./": "mine", dir + "/": "mine",
		dir + "/a.Q4_1.gguf": "a.Q4_1", "b.safetensors": "b", "/": "model",
	} {
		if got := servedName(path); got != want {
			t.Errorf("servedName(%q) = %q, want %q", path, got, want)
		}
	}
}

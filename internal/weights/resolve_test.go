package weights_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"cotenant/internal/testenv"
	"cotenant/internal/weights"
)

const commit = "12fd25f77366fa6b3b4b768ec3050bf629380bac"

// hub makes a Hugging Face cache as huggingface_hub lays it out: blobs, and links to them in a snapshot.
func hub(t *testing.T) string {
	t.Helper()
	const repo = "models--org--tiny-1.5B"
	dir := folder(t, map[string]string{
		repo + "/refs/main":                                          commit,
		repo + "/blobs/aaaa":                                         safetensors(t, tensor("a", 10)),
		repo + "/blobs/bbbb":                                         `{"model_type":"llama"}`,
		"models--org--detached/snapshots/abc/x":                      "",
		"models--org--two/snapshots/abc/x":                           "",
		"models--org--two/snapshots/def/x":                           "",
		"models--org--none/blobs/x":                                  "",
		"models--org--gone/refs/main":                                commit + "\n",
		"models--org--evil/refs/main":                                "../../../secret",
		"models--org--nl/refs/main":                                  commit + "\n",
		"models--org--nl/snapshots/" + commit + "/model.safetensors": "",
	})
	snapshot := filepath.Join(dir, repo, "snapshots", commit)
	if err := os.MkdirAll(snapshot, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, blob := range map[string]string{"model.safetensors": "aaaa", "config.json": "bbbb"} {
		if err := os.Symlink(filepath.Join("..", "..", "blobs", blob), filepath.Join(snapshot, name)); err != nil {
			testenv.Missing(t, "symbolic links", err.Error())
		}
	}
	return dir
}

// clearHub unsets everything that decides where the cache is.
func clearHub(t *testing.T) {
	for _, v := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"} {
		t.Setenv(v, "")
	}
}

func TestResolveFindsTheCache(t *testing.T) {
	cache := hub(t)
	under := func(parts ...string) string { // a folder in which the cache is at that path
		root := t.TempDir()
		path := filepath.Join(append([]string{root}, parts...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(cache, path); err != nil {
			t.Fatal(err)
		}
		return root
	}
	home := under(".cache", "huggingface", "hub")
	for _, c := range []struct{ variable, value string }{
		{"HF_HUB_CACHE", cache},
		{"HUGGINGFACE_HUB_CACHE", cache},
		{"HF_HOME", under("hub")},
		{"XDG_CACHE_HOME", under("huggingface", "hub")},
		{"HOME", home},
		{"HF_HOME", filepath.FromSlash("~/.cache/huggingface")},
	} {
		t.Run(c.variable, func(t *testing.T) {
			if runtime.GOOS == "windows" && (c.variable == "HOME" || strings.HasPrefix(c.value, "~")) {
				t.Skip("needs HOME: Windows has another variable")
			}
			clearHub(t)
			t.Setenv("HOME", home)
			t.Setenv(c.variable, c.value)
			path, err := weights.Resolve("org/tiny-1.5B")
			if err != nil {
				t.Fatal(err)
			}
			f, err := weights.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			if got := first(t, f, "a"); got != 10 {
				t.Errorf("a begins with %v", got)
			}
			if text, ok, err := f.Sidecar("config.json"); !ok || err != nil || !strings.Contains(string(text), "llama") {
				t.Errorf("config.json: %q, %v, %v", text, ok, err)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	clearHub(t)
	cache := hub(t)
	t.Setenv("HF_HUB_CACHE", cache)
	for _, c := range []struct{ name, want, err string }{
		{"org/nl", "models--org--nl/snapshots/" + commit, ""},
		{"org/detached", "models--org--detached/snapshots/abc", ""},
		{"org/two", "", "has no refs/main and 2 snapshots"},
		{"org/none", "", "has no refs/main and 0 snapshots"},
		{"org/gone", "", "its main revision " + commit + " is not in"},
		{"org/evil", "", `holds "../../../secret", not a commit`},
		{"org/absent", "", "no such repository in the Hugging Face cache " + cache},
		{"org/absent", "", "run `hf download org/absent`"},
		{"../models--org--nl", "", "give a GGUF file"},
		{"org/..", "", "give a GGUF file"},
		{"a/b/c", "", "give a GGUF file"},
		{"nowhere.gguf", "", "give a GGUF file"},
		{"", "", "the name is empty"},
	} {
		got, err := weights.Resolve(c.name)
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%q: %v, want %q", c.name, err, c.err)
		case c.err == "" && (err != nil || got != filepath.Join(cache, filepath.FromSlash(c.want))):
			t.Errorf("%q is %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

// TestResolvePrefersPaths: what exists on disk is meant, even if it looks like a repository.
func TestResolvePrefersPaths(t *testing.T) {
	clearHub(t)
	t.Setenv("HF_HUB_CACHE", hub(t))
	t.Chdir(folder(t, map[string]string{"org/tiny-1.5B/model.safetensors": "x"}))
	if got, err := weights.Resolve("org/tiny-1.5B"); err != nil || got != "org/tiny-1.5B" {
		t.Errorf("%q, %v", got, err)
	}
}

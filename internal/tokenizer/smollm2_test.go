package tokenizer_test

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"cotenant/internal/testenv"
	"cotenant/internal/tokenizer"
	"cotenant/internal/weights"
)

// smolLM2 reads the vocabulary of SmolLM2 from its GGUF file.
func smolLM2(t *testing.T) tokenizer.Vocab {
	t.Helper()
	f, err := weights.Open(testenv.Model(t, "SmolLM2-135M-Instruct.Q4_1.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v := tokenizer.Vocab{EOT: -1, EOM: -1}
	must := func(ok bool, err error) {
		t.Helper()
		if !ok || err != nil {
			t.Fatalf("the file has lost a key: %v", err)
		}
	}
	text := func(key string) string {
		s, ok, err := f.String(key)
		must(ok, err)
		return s
	}
	texts := func(key string) []string {
		list, ok, err := f.Strings(key)
		must(ok, err)
		out := make([]string, 0, list.Len())
		for _, s := range list.All() {
			out = append(out, s)
		}
		return out
	}
	id := func(key string) int32 {
		n, ok, err := f.Int(key)
		must(ok, err)
		return int32(n)
	}
	v.Model, v.Pre = text("tokenizer.ggml.model"), text("tokenizer.ggml.pre")
	v.Tokens, v.Merges = texts("tokenizer.ggml.tokens"), texts("tokenizer.ggml.merges")
	v.BOS, v.EOS = id("tokenizer.ggml.bos_token_id"), id("tokenizer.ggml.eos_token_id")
	types, ok, err := f.Int32s("tokenizer.ggml.token_type")
	must(ok, err)
	v.Types = types
	addBOS, ok, err := f.Bool("tokenizer.ggml.add_bos_token")
	must(ok, err)
	v.AddBOS = &addBOS
	return v
}

func readGzip(t *testing.T, name string, v any) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// TestSmolLM2EqualsHuggingFace runs the GGUF's vocabulary with its own pre-tokenizer and with GPT-2's.
func TestSmolLM2EqualsHuggingFace(t *testing.T) {
	v := smolLM2(t)
	var texts []string
	readGzip(t, "strings.json.gz", &texts)
	for name, pre := range map[string]string{"smollm2": "smollm", "smollm2_gpt2": "gpt-2"} {
		t.Run(name, func(t *testing.T) {
			var want struct {
				Plain   [][]int32
				Special map[string][]int32
			}
			readGzip(t, name+".json.gz", &want)
			if len(texts) < 3000 || len(want.Plain) != len(texts) || len(want.Special) < 100 {
				t.Fatalf("%d strings, %d plain and %d special answers", len(texts), len(want.Plain), len(want.Special))
			}
			v := v
			v.Pre = pre
			tok, err := tokenizer.FromVocab(v)
			if err != nil {
				t.Fatal(err)
			}
			wrong := 0
			for i, s := range texts {
				special, ok := want.Special[strconv.Itoa(i)]
				if !ok {
					special = want.Plain[i]
				}
				if plain := tok.Encode(s); !slices.Equal(plain, want.Plain[i]) {
					wrong++
					t.Logf("Encode(%.100q) = %v, want %v", s, plain, want.Plain[i])
				}
				if got := tok.EncodeSpecial(s); !slices.Equal(got, special) {
					wrong++
					t.Logf("EncodeSpecial(%.100q) = %v, want %v", s, got, special)
				}
			}
			if wrong > 0 {
				t.Errorf("%d of %d encodings differ from Hugging Face's", wrong, 2*len(texts))
			}
		})
	}
}

func TestSmolLM2(t *testing.T) {
	tok, err := tokenizer.FromVocab(smolLM2(t))
	if err != nil {
		t.Fatal(err)
	}
	if tok.BOS() != 1 || tok.AddBOS() || !slices.Equal(tok.EOS(), []int32{2, 0}) || tok.VocabSize() != 49152 {
		t.Errorf("BOS %d, added %v, EOS %v, size %d", tok.BOS(), tok.AddBOS(), tok.EOS(), tok.VocabSize())
	}
	// The bytes that valid UTF-8 can hold and the vocabulary can't; Hugging Face leaves them out too.
	if got := tok.Lacks(); !slices.Equal(got, []byte{4, 6, 19, 20, 22, 29, 192, 193, 241, 242, 245, 246, 247, 248, 249, 250, 251, 252, 253, 254, 255}) {
		t.Errorf("Lacks() = %v", got)
	}
	if got := string(tok.Decode(tok.Encode("a\x04b\x1dc"))); got != "abc" {
		t.Errorf("decoded %q", got)
	}
}

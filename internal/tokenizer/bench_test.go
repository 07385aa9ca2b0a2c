package tokenizer

import (
	"os"
	"strings"
	"testing"

	"cotenant/internal/testenv"
)

// corpus is the oracle's strings back to back: every script, so harder than English.
func corpus(t testing.TB) string {
	var texts []string
	readGzip(t, "strings.json.gz", &texts)
	return strings.Join(texts[:3500], "\n")
}

func BenchmarkEncode(b *testing.B) {
	const english = "The scheduler picks work under one token budget, decodes first; it doesn't know what's in a prompt, only how long (about 700 tokens) it is.\n"
	for _, name := range []string{"qwen3", "llama3_1"} {
		tok := loadReal(b, name, "")
		for what, text := range map[string]string{"scripts": corpus(b), "english": strings.Repeat(english, 1000)} {
			b.Run(name+"/"+what, func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					tok.Encode(text)
				}
			})
		}
	}
}

func BenchmarkOneLetter(b *testing.B) {
	tok := loadReal(b, "qwen3", "")
	text := strings.Repeat("a", 10_000_000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Encode(text)
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, name := range []string{"qwen3", "llama3_1"} {
		file, err := os.ReadFile(testenv.Model(b, name+"/tokenizer.json"))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(file)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := FromJSON(file, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

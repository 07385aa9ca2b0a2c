package tokenizer

import (
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"
)

func FuzzEncodeDecode(f *testing.F) {
	var texts []string
	readGzip(f, "strings.json.gz", &texts)
	for i := 0; i < len(texts); i += 40 {
		f.Add(texts[i], uint8(i))
	}
	toks := map[string]*Tokenizer{}
	for _, name := range smallNames {
		toks[name] = loadSmall(f, name)
	}
	f.Fuzz(func(t *testing.T, text string, at uint8) {
		for name, tok := range toks {
			want := text
			if tok.usesC {
				want = toC(text)
			}
			plain := tok.Encode(text)
			if got := string(tok.Decode(plain)); got != want && utf8.ValidString(text) {
				t.Errorf("%s: Decode(Encode(%q)) = %q", name, text, got)
			}
			if id, bad := firstControl(tok, plain); bad {
				t.Errorf("%s: Encode(%q) has the control token %d", name, text, id)
			}
			cut := int(at) % (len(text) + 1)
			if id, bad := firstControl(tok, tok.EncodeSegments([]Segment{{text[:cut], false}, {text[cut:], false}})); bad {
				t.Errorf("%s: segments of %q have the control token %d", name, text, id)
			}
			special := tok.EncodeSpecial(text)
			if _, has := firstControl(tok, special); !has {
				if got := tok.EncodeSegments([]Segment{{text[:cut], true}, {text[cut:], false}}); string(tok.Decode(got)) != string(tok.Decode(special)) || len(got) != len(special) {
					t.Errorf("%s: %q cut at %d: %v, whole %v", name, text, cut, got, special)
				}
			}
		}
	})
}

func FuzzFromJSON(f *testing.F) {
	paths, err := filepath.Glob("testdata/small_*.json")
	if err != nil || len(paths) != len(smallNames) {
		f.Fatalf("the corpus has %d files: %v", len(paths), err)
	}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, []byte(`{"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "add_bos_token": true}`))
	}
	f.Add([]byte(tiny), []byte(`{"bos_token":"<s>","eos_token":"<s>"}`))
	f.Fuzz(func(t *testing.T, file, config []byte) {
		tok, err := FromJSON(file, config)
		if err != nil {
			return
		}
		const text = "Hello, <s> wörld 123!\n  <|im_end|>"
		if id, bad := firstControl(tok, tok.Encode(text)); bad {
			t.Errorf("Encode has the control token %d", id)
		}
		tok.ToText(tok.EncodeSpecial(text))
		for _, id := range append(tok.EOS(), tok.BOS()) {
			if id < -1 || int(id) >= tok.VocabSize() {
				t.Errorf("special id %d of %d", id, tok.VocabSize())
			}
		}
	})
}

// tiny is small enough for a fuzzer to find its way through.
const tiny = `{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":3,"content":"<s>","special":true,"normalized":true}],
"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],
"special_tokens":{"<s>":{"id":"<s>","ids":[3],"tokens":["<s>"]}}},"decoder":{"type":"ByteLevel"},
"model":{"type":"BPE","ignore_merges":true,"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}`

func TestTinyLoads(t *testing.T) {
	if _, err := FromJSON([]byte(tiny), nil); err != nil {
		t.Error(err)
	}
}

package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// edit changes a copy of a small tokenizer.json.
func edit(t testing.TB, name string, change func(map[string]any)) []byte {
	t.Helper()
	file, err := os.ReadFile("testdata/small_" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	d := json.NewDecoder(bytes.NewReader(file))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		t.Fatal(err)
	}
	change(doc)
	out, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func obj(v any) map[string]any { return v.(map[string]any) }

// step returns the i-th pre-tokenizer of a sequence.
func step(doc map[string]any, i int) map[string]any {
	return obj(obj(doc["pre_tokenizer"])["pretokenizers"].([]any)[i])
}

func added(doc map[string]any) map[string]any { return obj(doc["added_tokens"].([]any)[0]) }

// TestRefusesByName holds what a tokenizer.json can ask for that isn't done: each must be refused, and named.
func TestRefusesByName(t *testing.T) {
	set := func(part, key string, v any) func(map[string]any) {
		return func(doc map[string]any) { obj(doc[part])[key] = v }
	}
	for _, c := range []struct {
		name   string
		change func(map[string]any)
		want   string
	}{
		{"model type", set("model", "type", "Unigram"), `"Unigram"`},
		{"no model", func(d map[string]any) { delete(d, "model") }, "no model"},
		{"dropout", set("model", "dropout", 0.1), "model.dropout"},
		{"prefix", set("model", "continuing_subword_prefix", "##"), "model.continuing_subword_prefix"},
		{"suffix", set("model", "end_of_word_suffix", "</w>"), "model.end_of_word_suffix"},
		{"byte fallback", set("model", "byte_fallback", true), "model.byte_fallback"},
		{"model field", set("model", "cheat", 1), `"cheat"`},
		{"top field", func(d map[string]any) { d["extra"] = 1 }, `"extra"`},
		{"unk", func(d map[string]any) {
			m := obj(d["model"])
			m["unk_token"] = "<|endoftext|>"
			v := obj(m["vocab"])
			id := v["ÿ"]
			delete(v, "ÿ")
			v["ÿÿ"] = id
		}, "model.unk_token"},
		{"normalizer", func(d map[string]any) { d["normalizer"] = map[string]any{"type": "Lowercase"} }, `"Lowercase"`},
		{"normalizer in a sequence", func(d map[string]any) {
			d["normalizer"] = map[string]any{"type": "Sequence", "normalizers": []any{map[string]any{"type": "NFC"}, map[string]any{"type": "NFKC"}}}
		}, `"NFKC"`},
		{"normalizer with fields", func(d map[string]any) {
			d["normalizer"] = map[string]any{"type": "Replace", "pattern": map[string]any{"String": " "}, "content": "_"}
		}, `normalizer "Replace"`},
		{"Unigram with its fields", func(d map[string]any) {
			d["model"] = map[string]any{"type": "Unigram", "unk_id": 0, "vocab": []any{[]any{"a", 0.5}}}
		}, `"Unigram"`},
		{"WordPiece with its fields", func(d map[string]any) {
			obj(d["model"])["max_input_chars_per_word"] = 100
			obj(d["model"])["type"] = "WordPiece"
		}, `model "WordPiece"`},
		{"no pre-tokenizer", func(d map[string]any) { d["pre_tokenizer"] = nil }, "no pre_tokenizer"},
		{"pre-tokenizer", func(d map[string]any) { d["pre_tokenizer"] = map[string]any{"type": "Whitespace"} }, `"Whitespace"`},
		{"regex", func(d map[string]any) { step(d, 0)["pattern"] = map[string]any{"Regex": `\w+`} }, `\\w+`},
		{"pattern string", func(d map[string]any) { step(d, 0)["pattern"] = map[string]any{"String": " "} }, "Split"},
		{"behavior", func(d map[string]any) { step(d, 0)["behavior"] = "Removed" }, `"Removed"`},
		{"invert", func(d map[string]any) { step(d, 0)["invert"] = true }, "invert true"},
		{"regex twice", func(d map[string]any) { step(d, 1)["use_regex"] = true }, `"Split"`},
		{"prefix space", func(d map[string]any) { step(d, 1)["add_prefix_space"] = true }, "add_prefix_space"},
		{"prefix space by default", func(d map[string]any) { delete(step(d, 1), "add_prefix_space") }, "add_prefix_space"},
		{"three steps", func(d map[string]any) {
			p := obj(d["pre_tokenizer"])
			p["pretokenizers"] = append(p["pretokenizers"].([]any), step(d, 1))
		}, "3 steps"},
		{"empty sequence", func(d map[string]any) { obj(d["pre_tokenizer"])["pretokenizers"] = []any{} }, "0 steps"},
		{"post-processor", func(d map[string]any) { d["post_processor"] = map[string]any{"type": "RobertaProcessing"} }, `"RobertaProcessing"`},
		{"template without text", func(d map[string]any) {
			d["post_processor"] = map[string]any{"type": "TemplateProcessing", "single": []any{}, "special_tokens": map[string]any{}}
		}, "without the text"},
		{"template with unknown token", func(d map[string]any) {
			d["post_processor"] = map[string]any{"type": "TemplateProcessing", "special_tokens": map[string]any{}, "single": []any{
				map[string]any{"SpecialToken": map[string]any{"id": "<s>", "type_id": 0}}, map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}}}
		}, `"<s>"`},
		{"decoder", func(d map[string]any) { d["decoder"] = map[string]any{"type": "WordPiece"} }, "decoder"},
		{"no decoder", func(d map[string]any) { d["decoder"] = nil }, "decoder"},
		{"single_word", func(d map[string]any) { added(d)["single_word"] = true }, "single_word"},
		{"lstrip", func(d map[string]any) { added(d)["lstrip"] = true }, "lstrip"},
		{"rstrip", func(d map[string]any) { added(d)["rstrip"] = true }, "rstrip"},
		{"added empty", func(d map[string]any) {
			d["added_tokens"] = append(d["added_tokens"].([]any), map[string]any{"id": 700, "content": "", "special": true})
		}, "0 bytes"},
		{"added long", func(d map[string]any) {
			d["added_tokens"] = append(d["added_tokens"].([]any), map[string]any{"id": 700, "content": strings.Repeat("x", 257)})
		}, "257 bytes"},
		{"added id", func(d map[string]any) { added(d)["id"] = 5 }, "isn't that of the vocabulary"},
		{"added twice", func(d map[string]any) {
			d["added_tokens"] = append(d["added_tokens"].([]any), map[string]any{"id": 700, "content": "<think>"})
		}, "twice"},
		{"huge id", func(d map[string]any) { obj(obj(d["model"])["vocab"])["zzz"] = 1 << 30 }, "has the id 1073741824"},
		{"negative id", func(d map[string]any) { obj(obj(d["model"])["vocab"])["zzz"] = -2 }, "has the id -2"},
		{"id beyond int32", func(d map[string]any) { obj(obj(d["model"])["vocab"])["zzz"] = 1 << 40 }, "1099511627776"},
		{"same id", func(d map[string]any) { obj(obj(d["model"])["vocab"])["zzz"] = 7 }, "same id 7"},
		{"merge of unknown", func(d map[string]any) { obj(d["model"])["merges"] = []any{[]any{"q", "zzzz"}} }, "merge 0"},
		{"merge into unknown", func(d map[string]any) { obj(d["model"])["merges"] = []any{[]any{"ÿ", "ÿ"}} }, "merge 0"},
		{"merge of three", func(d map[string]any) { obj(d["model"])["merges"] = []any{[]any{"a", "b", "c"}} }, "3 parts"},
		{"merge line", func(d map[string]any) { obj(d["model"])["merges"] = []any{"a b c"} }, "a b c"},
		{"merge without a space", func(d map[string]any) { obj(d["model"])["merges"] = []any{"ab"} }, `"ab"`},
		{"empty vocabulary", func(d map[string]any) {
			m := obj(d["model"])
			m["vocab"], m["merges"], d["added_tokens"] = map[string]any{}, []any{}, []any{}
		}, "empty"},
		{"vocab of the wrong type", set("model", "vocab", []any{}), "vocab"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := FromJSON(edit(t, "qwen2", c.change), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "tokenizer.json: ") {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	if _, err := FromJSON(edit(t, "qwen2", func(map[string]any) {}), nil); err != nil {
		t.Errorf("the unchanged file is refused: %v", err)
	}
}

// TestControlTokensCantBeMerged: a merge that makes a control token would let plain text become one.
func TestControlTokensCantBeMerged(t *testing.T) {
	file := edit(t, "llama3", func(d map[string]any) {
		m := obj(d["model"])
		merge := m["merges"].([]any)[40].([]any)
		made := merge[0].(string) + merge[1].(string)
		d["added_tokens"] = append(d["added_tokens"].([]any), map[string]any{"id": obj(m["vocab"])[made], "content": made, "special": true})
	})
	if _, err := FromJSON(file, nil); err == nil || !strings.Contains(err.Error(), "merge 40") {
		t.Errorf("error %v", err)
	}
	v := Vocab{Model: "gpt2", Pre: "llama-bpe", Tokens: []string{"a", "b", "ab"}, Types: []int32{1, 1, 3}, BOS: -1, EOS: -1, EOT: -1, EOM: -1}
	tok, err := FromVocab(v)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("ab"); len(got) != 2 {
		t.Errorf("a whole word became the control token: %v", got)
	}
	v.Merges = []string{"a b"}
	if _, err := FromVocab(v); err == nil {
		t.Error("a merge into a control token is taken")
	}
}

func TestConfig(t *testing.T) {
	plain := edit(t, "gpt2", func(map[string]any) {})
	template := edit(t, "gpt2", func(d map[string]any) {
		token := func(id string, n int) (string, any) {
			return id, map[string]any{"id": id, "ids": []any{n}, "tokens": []any{id}}
		}
		special := map[string]any{}
		for i, s := range []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"} {
			k, v := token(s, i)
			special[k] = v
		}
		piece := func(s string) any { return map[string]any{"SpecialToken": map[string]any{"id": s, "type_id": 0}} }
		d["post_processor"] = map[string]any{"type": "Sequence", "processors": []any{
			map[string]any{"type": "ByteLevel", "trim_offsets": false},
			map[string]any{"type": "TemplateProcessing", "special_tokens": special, "pair": []any{}, "single": []any{
				piece("<|im_start|>"), map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}, piece("<|im_end|>")}},
		}}
	})
	for _, c := range []struct {
		file         []byte
		config, want string
	}{
		{plain, ``, "-1 false [2 600 0] false"},
		{plain, `{}`, "-1 false [2 600 0] false"},
		{plain, `{"bos_token": null, "eos_token": "<|endoftext|>"}`, "-1 false [0 2 600] false"},
		{plain, `{"bos_token": {"content": "<|im_start|>", "lstrip": false}, "add_bos_token": true}`, "1 true [2 600 0] false"},
		{plain, `{"bos_token": "nope"}`, "error: tokenizer_config.json: bos_token nope isn't in the vocabulary"},
		{plain, `{"add_bos_token": true}`, "error: tokenizer.json: BOS is to be added, but none is declared"},
		{plain, `[`, "error: tokenizer_config.json: unexpected end of JSON input"},
		{template, ``, "1 true [2 600 0] true"},
		{template, `{"add_bos_token": false, "add_eos_token": false}`, "1 false [2 600 0] false"},
		{template, `{"bos_token": "<|endoftext|>"}`, `error: tokenizer_config.json: bos_token "<|endoftext|>" isn't the token that the post-processor adds`},
		{template, `{"eos_token": "<|endoftext|>"}`, `error: tokenizer_config.json: eos_token "<|endoftext|>" isn't the token that the post-processor adds`},
	} {
		got := ""
		if tok, err := FromJSON(c.file, []byte(c.config)); err != nil {
			got = "error: " + err.Error()
		} else {
			got = fmt.Sprint(tok.BOS(), tok.AddBOS(), tok.EOS(), tok.AddEOS())
		}
		if strings.ReplaceAll(got, `"nope"`, "nope") != c.want {
			t.Errorf("%s: %s, want %s", c.config, got, c.want)
		}
	}
}

func TestBothFormsOfMerges(t *testing.T) {
	lines := edit(t, "qwen2", func(d map[string]any) {
		m := obj(d["model"])
		var out []any
		for _, p := range m["merges"].([]any) {
			out = append(out, p.([]any)[0].(string)+" "+p.([]any)[1].(string))
		}
		m["merges"] = out
	})
	tok, err := FromJSON(lines, nil)
	if err != nil {
		t.Fatal(err)
	}
	const text = "The same text, the same ids: 12 + 30 = 42."
	if a, b := tok.Encode(text), loadSmall(t, "qwen2").Encode(text); fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("%v and %v", a, b)
	}
}

func TestVocabRefusals(t *testing.T) {
	yes := true
	good := func() Vocab {
		return Vocab{Model: "gpt2", Pre: "smollm", Tokens: []string{"a", "b", "ab", "<s>"}, Types: []int32{1, 1, 1, 3}, Merges: []string{"a b"}, BOS: 3, EOS: 3, EOT: -1, EOM: -1}
	}
	if _, err := FromVocab(good()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Vocab){
		`"llama"`:                 func(v *Vocab) { v.Model = "llama" },
		`"deepseek-llm"`:          func(v *Vocab) { v.Pre = "deepseek-llm" },
		`pre-tokenizer "default"`: func(v *Vocab) { v.Pre = "default" },
		`pre-tokenizer ""`:        func(v *Vocab) { v.Pre = "" },
		"3 entries for 4":         func(v *Vocab) { v.Types = v.Types[:3] },
		"of type 6":               func(v *Vocab) { v.Types[0] = 6 },
		"of type -1":              func(v *Vocab) { v.Types[0] = -1 },
		"token id 4":              func(v *Vocab) { v.BOS = 4 },
		"token id -7":             func(v *Vocab) { v.EOT = -7 },
		"twice":                   func(v *Vocab) { v.Tokens[1] = "a" },
		"merge 0":                 func(v *Vocab) { v.Merges[0] = "b a" },
		"two parts":               func(v *Vocab) { v.Merges[0] = "ab" },
		"empty":                   func(v *Vocab) { v.Tokens, v.Types, v.Merges = nil, nil, nil },
		"BOS is to be added":      func(v *Vocab) { v.BOS, v.AddBOS = -1, &yes },
		"EOS is to be added":      func(v *Vocab) { v.EOS, v.AddEOS = -1, &yes },
	} {
		v := good()
		change(&v)
		if _, err := FromVocab(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	v := good()
	v.Pre = "llama-bpe"
	if tok, err := FromVocab(v); err != nil || !tok.AddBOS() {
		t.Errorf("llama-bpe adds BOS unless the file says otherwise: %v", err)
	}
	v.Types[2] = 5
	v.Merges = nil
	if tok, err := FromVocab(v); err != nil || len(tok.TokenBytes(2)) > 0 {
		t.Errorf("an unused token stands for nothing: %v", err)
	}
}

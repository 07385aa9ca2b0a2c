package tokenizer

import "fmt"

// Vocab is a vocabulary as a GGUF file has it under tokenizer.ggml (names as in ggml's gguf.md). Ids are -1 where the
// file has none.
type Vocab struct {
	Model  string   // tokenizer.ggml.model; only "gpt2" is supported
	Pre    string   // tokenizer.ggml.pre
	Tokens []string // tokenizer.ggml.tokens, in byte-level characters
	Types  []int32  // tokenizer.ggml.token_type, one a token; nil means that all are normal
	Merges []string // tokenizer.ggml.merges, "left right"

	BOS, EOS, EOT, EOM int32 // tokenizer.ggml.{bos,eos,eot,eom}_token_id
	AddBOS, AddEOS     *bool // tokenizer.ggml.add_{bos,eos}_token; nil where the file doesn't say
}

// ggml's token types (llama.h, LLAMA_TOKEN_TYPE_*). Byte tokens (6) belong to another kind of tokenizer.
var ggmlKinds = map[int32]kind{1: normal, 2: control, 3: control, 4: userDefined, 5: unused}

// FromVocab makes a tokenizer from a GGUF file's vocabulary. It keeps no reference to v.
func FromVocab(v Vocab) (*Tokenizer, error) {
	if v.Model != "gpt2" {
		return nil, fmt.Errorf("tokenizer model %q (tokenizer.ggml.model) isn't supported; gpt2 is", v.Model)
	}
	pre, ok := ggufPre[v.Pre]
	if !ok {
		return nil, fmt.Errorf("pre-tokenizer %q (tokenizer.ggml.pre) isn't supported; gpt-2, smollm, qwen2 and llama-bpe are", v.Pre)
	}
	if v.Types != nil && len(v.Types) != len(v.Tokens) {
		return nil, fmt.Errorf("tokenizer.ggml.token_type has %d entries for %d tokens", len(v.Types), len(v.Tokens))
	}
	src := &source{
		pieces: make([]piece, len(v.Tokens)),
		left:   make([]string, len(v.Merges)),
		right:  make([]string, len(v.Merges)),
		pre:    pre,
		bos:    v.BOS,
		eos:    []int32{v.EOS, v.EOT, v.EOM},
		addBOS: pre.addBOS && v.BOS >= 0,
	}
	for i, text := range v.Tokens {
		p := piece{text: text, present: true}
		if v.Types != nil {
			if p.kind, ok = ggmlKinds[v.Types[i]]; !ok {
				return nil, fmt.Errorf("token %d (%.40q) is of type %d (tokenizer.ggml.token_type), which isn't supported", i, text, v.Types[i])
			}
		}
		src.pieces[i] = p
	}
	for i, m := range v.Merges {
		var err error
		if src.left[i], src.right[i], err = splitMerge(m); err != nil {
			return nil, err
		}
	}
	if v.AddBOS != nil {
		src.addBOS = *v.AddBOS
	}
	if v.AddEOS != nil {
		src.addEOS = *v.AddEOS
	}
	t, err := src.build()
	if err != nil {
		return nil, fmt.Errorf("vocabulary: %w", err)
	}
	return t, nil
}

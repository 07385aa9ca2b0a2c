package model

import (
	"errors"
	"fmt"

	"cotenant/internal/tokenizer"
	"cotenant/internal/weights"
)

// loadTokenizer reads the tokenizer of f, which may have as many tokens as the embedding has rows.
func loadTokenizer(f *weights.File, vocab int) (*tokenizer.Tokenizer, error) {
	read := hfTokenizer
	if f.Format() == weights.GGUF {
		read = ggufTokenizer
	}
	t, err := read(f)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if t.VocabSize() > vocab {
		return nil, fmt.Errorf("tokenizer: ids up to %d, but the embedding has %d rows", t.VocabSize()-1, vocab)
	}
	return t, nil
}

func hfTokenizer(f *weights.File) (*tokenizer.Tokenizer, error) {
	data, ok, err := f.Sidecar("tokenizer.json")
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errors.New("tokenizer.json is missing: the folder isn't a whole Hugging Face model")
	}
	config, _, err := f.Sidecar("tokenizer_config.json")
	if err != nil {
		return nil, err
	}
	return tokenizer.FromJSON(data, config)
}

func ggufTokenizer(f *weights.File) (*tokenizer.Tokenizer, error) {
	r := &reader{meta: f}
	v := tokenizer.Vocab{
		Model: r.text("tokenizer.ggml.model"),
		Pre:   r.text("tokenizer.ggml.pre"),
		BOS:   r.tokenID("tokenizer.ggml.bos_token_id"),
		EOS:   r.tokenID("tokenizer.ggml.eos_token_id"),
		EOT:   r.tokenID("tokenizer.ggml.eot_token_id"),
		EOM:   r.tokenID("tokenizer.ggml.eom_token_id"),
	}
	v.AddBOS, v.AddEOS = r.flag("tokenizer.ggml.add_bos_token"), r.flag("tokenizer.ggml.add_eos_token")
	if r.err != nil {
		return nil, r.err
	}
	var err error
	if v.Tokens, err = texts(f, "tokenizer.ggml.tokens"); err != nil {
		return nil, err
	}
	if v.Merges, err = texts(f, "tokenizer.ggml.merges"); err != nil {
		return nil, err
	}
	if v.Types, _, err = f.Int32s("tokenizer.ggml.token_type"); err != nil {
		return nil, err
	}
	return tokenizer.FromVocab(v)
}

// texts copies a list of strings. The file's size bounds it.
func texts(f *weights.File, key string) ([]string, error) {
	list, ok, err := f.Strings(key)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("%s is missing", key)
	}
	out := make([]string, list.Len())
	for i, s := range list.All() {
		out[i] = s
	}
	return out, nil
}

// tokenID returns a token's id, -1 where the file names none.
func (r *reader) tokenID(key string) int32 {
	id := r.plainInt(key, -1)
	if id == -1 || id == 1<<32-1 { // some files say -1 for none
		return -1
	}
	if id < 0 || id >= maxVocab {
		r.fail(fmt.Errorf("%s is %d", key, id))
		return -1
	}
	return int32(id)
}

// flag returns a truth value, nil where it is absent.
func (r *reader) flag(key string) *bool {
	b, ok, err := r.meta.Bool(key)
	if err != nil {
		r.fail(err)
	}
	if !ok {
		return nil
	}
	return &b
}

package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// FromJSON makes a tokenizer from Hugging Face's tokenizer.json and tokenizer_config.json (the second may be empty).
// The first says how text is split, merged and matched; the second names BOS and EOS and whether plain prompts get
// them. An explicit add_bos_token or add_eos_token overrides the post-processor, as in transformers. Truncation and
// padding belong to a call and are ignored.
func FromJSON(tokenizerJSON, tokenizerConfigJSON []byte) (*Tokenizer, error) {
	var f fileJSON
	if err := strict(tokenizerJSON, &f); err != nil {
		if part := unknownPart(tokenizerJSON); part != nil {
			err = part
		}
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	src, err := f.source()
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if len(bytes.TrimSpace(tokenizerConfigJSON)) > 0 {
		var c configJSON
		if err := json.Unmarshal(tokenizerConfigJSON, &c); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: %w", err)
		}
		if err := c.apply(src); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: %w", err)
		}
	}
	t, err := src.build()
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

// fileJSON has every field that tokenizers 0.23 writes; another one is refused, since it may change the ids.
type fileJSON struct {
	Version     string          `json:"version"`
	Truncation  json.RawMessage `json:"truncation"`
	Padding     json.RawMessage `json:"padding"`
	AddedTokens []struct {
		ID         int32  `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer    *normalizerJSON    `json:"normalizer"`
	PreTokenizer  *preTokenizerJSON  `json:"pre_tokenizer"`
	PostProcessor *postProcessorJSON `json:"post_processor"`
	Decoder       *byteLevelJSON     `json:"decoder"`
	Model         *struct {
		Type                    string           `json:"type"`
		Dropout                 *float64         `json:"dropout"`
		UnkToken                *string          `json:"unk_token"`
		ContinuingSubwordPrefix *string          `json:"continuing_subword_prefix"`
		EndOfWordSuffix         *string          `json:"end_of_word_suffix"`
		FuseUnk                 bool             `json:"fuse_unk"`
		ByteFallback            bool             `json:"byte_fallback"`
		IgnoreMerges            bool             `json:"ignore_merges"`
		Vocab                   map[string]int32 `json:"vocab"`
		Merges                  mergesJSON       `json:"merges"`
	} `json:"model"`
}

// source checks the file and brings it to this package's form.
func (f *fileJSON) source() (*source, error) {
	m := f.Model
	switch {
	case m == nil:
		return nil, errors.New("there is no model")
	case m.Type != "BPE":
		return nil, fmt.Errorf("model type %q isn't supported; BPE is", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return nil, errors.New("model.dropout isn't supported")
	case m.ContinuingSubwordPrefix != nil && *m.ContinuingSubwordPrefix != "":
		return nil, errors.New("model.continuing_subword_prefix isn't supported")
	case m.EndOfWordSuffix != nil && *m.EndOfWordSuffix != "":
		return nil, errors.New("model.end_of_word_suffix isn't supported")
	case m.ByteFallback:
		return nil, errors.New("model.byte_fallback isn't supported")
	case f.Decoder == nil || f.Decoder.Type != "ByteLevel":
		return nil, errors.New("only the decoder ByteLevel is supported")
	}
	src := &source{bos: -1, left: m.Merges.left, right: m.Merges.right}
	var err error
	if src.pre, err = f.PreTokenizer.known(); err != nil {
		return nil, err
	}
	if src.pre.usesC, err = f.Normalizer.usesC(); err != nil {
		return nil, err
	}
	src.pre.ignoreMerges = m.IgnoreMerges
	if src.pieces, err = f.pieces(); err != nil {
		return nil, err
	}
	if m.UnkToken != nil && *m.UnkToken != "" {
		// With a token for each byte nothing is unknown.
		for _, c := range charOfByte {
			if _, ok := m.Vocab[string(c)]; !ok {
				return nil, errors.New("model.unk_token isn't supported in a vocabulary that lacks some bytes")
			}
		}
	}
	return src, f.PostProcessor.apply(src)
}

// pieces lists the vocabulary and the added tokens by id.
func (f *fileJSON) pieces() ([]piece, error) {
	const maxGap = 1 << 16 // ids that no token has
	size := 0
	check := func(text string, id int32) error {
		if id < 0 || int(id) >= len(f.Model.Vocab)+len(f.AddedTokens)+maxGap {
			return fmt.Errorf("token %.40q has the id %d in a vocabulary of %d", text, id, len(f.Model.Vocab))
		}
		size = max(size, int(id)+1)
		return nil
	}
	for text, id := range f.Model.Vocab {
		if err := check(text, id); err != nil {
			return nil, err
		}
	}
	for _, a := range f.AddedTokens {
		if err := check(a.Content, a.ID); err != nil {
			return nil, err
		}
	}
	pieces := make([]piece, size)
	for text, id := range f.Model.Vocab {
		if pieces[id].present {
			return nil, fmt.Errorf("tokens %.40q and %.40q have the same id %d", pieces[id].text, text, id)
		}
		pieces[id] = piece{text: text, present: true, inModel: true}
	}
	for _, a := range f.AddedTokens {
		for name, set := range map[string]bool{"single_word": a.SingleWord, "lstrip": a.LStrip, "rstrip": a.RStrip} {
			if set {
				return nil, fmt.Errorf("added token %.40q: %s isn't supported", a.Content, name)
			}
		}
		p := &pieces[a.ID]
		if id, ok := f.Model.Vocab[a.Content]; p.present && p.text != a.Content || ok && id != a.ID {
			return nil, fmt.Errorf("added token %.40q: its id %d isn't that of the vocabulary", a.Content, a.ID)
		}
		p.text, p.present, p.normalized, p.kind = a.Content, true, a.Normalized, userDefined
		if a.Special {
			p.kind = control
		}
	}
	return pieces, nil
}

// mergesJSON reads both forms of merges: "left right" and ["left", "right"].
type mergesJSON struct{ left, right []string }

func (m *mergesJSON) UnmarshalJSON(b []byte) error {
	var pairs [][]string
	if trimmed := bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(b), []byte("["))); bytes.HasPrefix(trimmed, []byte("[")) {
		if err := json.Unmarshal(b, &pairs); err != nil {
			return err
		}
		m.left, m.right = make([]string, len(pairs)), make([]string, len(pairs))
		for i, p := range pairs {
			if len(p) != 2 {
				return fmt.Errorf("merge %d has %d parts", i, len(p))
			}
			m.left[i], m.right[i] = p[0], p[1]
		}
		return nil
	}
	var lines []string
	if err := json.Unmarshal(b, &lines); err != nil {
		return err
	}
	m.left, m.right = make([]string, len(lines)), make([]string, len(lines))
	for i, line := range lines {
		var err error
		if m.left[i], m.right[i], err = splitMerge(line); err != nil {
			return err
		}
	}
	return nil
}

// configJSON is what matters of tokenizer_config.json.
type configJSON struct {
	BOS    *literalJSON `json:"bos_token"`
	EOS    *literalJSON `json:"eos_token"`
	AddBOS *bool        `json:"add_bos_token"`
	AddEOS *bool        `json:"add_eos_token"`
}

// literalJSON is a token as a string or as an object with its content.
type literalJSON string

func (l *literalJSON) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err == nil {
		*l = literalJSON(s)
		return nil
	}
	var o struct {
		Content string `json:"content"`
	}
	err := json.Unmarshal(b, &o)
	*l = literalJSON(o.Content)
	return err
}

func (c *configJSON) apply(src *source) error {
	find := func(name string, l *literalJSON) (int32, error) {
		if l == nil || *l == "" {
			return -1, nil
		}
		for i, p := range src.pieces {
			if p.present && p.text == string(*l) {
				return int32(i), nil
			}
		}
		return -1, fmt.Errorf("%s %.40q isn't in the vocabulary", name, string(*l))
	}
	bos, err := find("bos_token", c.BOS)
	if err != nil {
		return err
	}
	eos, err := find("eos_token", c.EOS)
	if err != nil {
		return err
	}
	if bos >= 0 {
		if src.addBOS && src.bos != bos {
			return fmt.Errorf("bos_token %q isn't the token that the post-processor adds", *c.BOS)
		}
		src.bos = bos
	}
	if eos >= 0 {
		if src.addEOS && src.eos[0] != eos {
			return fmt.Errorf("eos_token %q isn't the token that the post-processor adds", *c.EOS)
		}
		src.eos = []int32{eos}
	}
	if c.AddBOS != nil {
		src.addBOS = *c.AddBOS
	}
	if c.AddEOS != nil {
		src.addEOS = *c.AddEOS
	}
	return nil
}

// strict reads one JSON value and refuses fields that the type doesn't have.
func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is more after the JSON value")
	}
	return nil
}

package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// The parts of tokenizer.json. Each type has every field of the parts that are supported, so that a part with another
// field is refused by name when it is read; a nil part is JSON's null.

type normalizerJSON struct {
	Type        string           `json:"type"`
	Normalizers []normalizerJSON `json:"normalizers"`
}

// usesC reports whether text is brought to form C.
func (n *normalizerJSON) usesC() (bool, error) {
	if n == nil {
		return false, nil
	}
	switch n.Type {
	case "NFC":
		return true, nil
	case "Sequence":
		some := false
		for i := range n.Normalizers {
			c, err := n.Normalizers[i].usesC()
			if err != nil {
				return false, err
			}
			some = some || c
		}
		return some, nil
	}
	return false, fmt.Errorf("normalizer %q isn't supported; NFC is", n.Type)
}

// unknownPart looks for a part of an unsupported type in a file that couldn't be read. It says more than the name of a
// field does.
func unknownPart(file []byte) error {
	type part struct {
		Type          string `json:"type"`
		Normalizers   []part `json:"normalizers"`
		PreTokenizers []part `json:"pretokenizers"`
		Processors    []part `json:"processors"`
	}
	var f struct {
		Normalizer    part `json:"normalizer"`
		PreTokenizer  part `json:"pre_tokenizer"`
		PostProcessor part `json:"post_processor"`
		Decoder       part `json:"decoder"`
		Model         part `json:"model"`
	}
	if json.Unmarshal(file, &f) != nil {
		return nil
	}
	check := func(name string, known []string, p part) error {
		for _, p := range append([]part{p}, slices.Concat(p.Normalizers, p.PreTokenizers, p.Processors)...) {
			if p.Type != "" && p.Type != "Sequence" && !slices.Contains(known, p.Type) {
				return fmt.Errorf("%s %q isn't supported", name, p.Type)
			}
		}
		return nil
	}
	return errors.Join(
		check("normalizer", []string{"NFC"}, f.Normalizer),
		check("pre_tokenizer", []string{"ByteLevel", "Split", "Digits"}, f.PreTokenizer),
		check("post_processor", []string{"ByteLevel", "TemplateProcessing"}, f.PostProcessor),
		check("decoder", []string{"ByteLevel"}, f.Decoder),
		check("model", []string{"BPE"}, f.Model),
	)
}

type byteLevelJSON struct {
	Type           string `json:"type"`
	AddPrefixSpace *bool  `json:"add_prefix_space"` // absent: true (tokenizers' default)
	TrimOffsets    *bool  `json:"trim_offsets"`     // changes offsets only
	UseRegex       *bool  `json:"use_regex"`        // absent: true
}

type preTokenizerJSON struct {
	byteLevelJSON
	PreTokenizers []preTokenizerJSON `json:"pretokenizers"`
	Pattern       *struct {
		Regex  *string `json:"Regex"`
		String *string `json:"String"`
	} `json:"pattern"`
	Behavior         string `json:"behavior"`
	Invert           bool   `json:"invert"`
	IndividualDigits bool   `json:"individual_digits"`
}

// The regular expressions of known Split pre-tokenizers, letter for letter.
const (
	regexQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	regexLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// known returns the pre-tokenizer that the part describes.
func (p *preTokenizerJSON) known() (preTokenizer, error) {
	if p == nil {
		return preTokenizer{}, errors.New("there is no pre_tokenizer; ByteLevel is needed")
	}
	steps := []preTokenizerJSON{*p}
	if p.Type == "Sequence" {
		steps = p.PreTokenizers
	}
	if len(steps) == 0 || len(steps) > 2 {
		return preTokenizer{}, fmt.Errorf("a pre_tokenizer of %d steps isn't supported", len(steps))
	}
	last := steps[len(steps)-1]
	if last.Type != "ByteLevel" {
		return preTokenizer{}, fmt.Errorf("pre_tokenizer %q in the place of ByteLevel isn't supported", last.Type)
	}
	if last.AddPrefixSpace == nil || *last.AddPrefixSpace {
		return preTokenizer{}, errors.New("pre_tokenizer ByteLevel with add_prefix_space isn't supported")
	}
	regex := last.UseRegex == nil || *last.UseRegex
	if len(steps) == 1 {
		if !regex {
			return preTokenizer{}, errors.New("pre_tokenizer ByteLevel alone without use_regex isn't supported")
		}
		return preTokenizer{scan: scanGPT2}, nil
	}
	first := steps[0]
	switch {
	case first.Type == "Digits" && first.IndividualDigits && regex:
		return preTokenizer{scan: scanSmolLM}, nil
	case first.Type == "Split" && !regex:
		return first.knownSplit()
	}
	return preTokenizer{}, fmt.Errorf("pre_tokenizer %q before ByteLevel isn't supported in this form", first.Type)
}

func (p *preTokenizerJSON) knownSplit() (preTokenizer, error) {
	if p.Behavior != "Isolated" || p.Invert || p.Pattern == nil || p.Pattern.Regex == nil {
		return preTokenizer{}, fmt.Errorf("pre_tokenizer Split with behavior %q, invert %v isn't supported; Isolated by a Regex is", p.Behavior, p.Invert)
	}
	switch *p.Pattern.Regex {
	case regexQwen2:
		return preTokenizer{scan: scanQwen2}, nil
	case regexLlama3:
		return preTokenizer{scan: scanLlama3}, nil
	}
	return preTokenizer{}, fmt.Errorf("pre_tokenizer Split by the regular expression %.300q isn't supported; those of Qwen2 and Llama 3 are", *p.Pattern.Regex)
}

type postProcessorJSON struct {
	byteLevelJSON
	Processors    []postProcessorJSON `json:"processors"`
	Single        []templatePieceJSON `json:"single"`
	Pair          []templatePieceJSON `json:"pair"`
	SpecialTokens map[string]struct {
		ID     string   `json:"id"`
		IDs    []int32  `json:"ids"`
		Tokens []string `json:"tokens"`
	} `json:"special_tokens"`
}

type templatePieceJSON struct {
	SpecialToken *struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	} `json:"Sequence"`
}

// apply takes from a template the tokens before and after a text. ByteLevel only moves offsets.
func (p *postProcessorJSON) apply(src *source) error {
	if p == nil {
		return nil
	}
	switch p.Type {
	case "ByteLevel":
		return nil
	case "Sequence":
		for i := range p.Processors {
			if err := p.Processors[i].apply(src); err != nil {
				return err
			}
		}
		return nil
	case "TemplateProcessing":
		return p.applyTemplate(src)
	}
	return fmt.Errorf("post_processor %q isn't supported; ByteLevel and TemplateProcessing are", p.Type)
}

func (p *postProcessorJSON) applyTemplate(src *source) error {
	seen := false
	for _, s := range p.Single {
		if s.Sequence != nil {
			if seen || s.Sequence.ID != "A" || s.SpecialToken != nil {
				return errors.New("post_processor TemplateProcessing that doesn't hold the text exactly once isn't supported")
			}
			seen = true
			continue
		}
		if s.SpecialToken == nil {
			return errors.New("post_processor TemplateProcessing has a piece that is neither a token nor the text")
		}
		special, ok := p.SpecialTokens[s.SpecialToken.ID]
		if !ok || len(special.IDs) != 1 || src.addBOS && !seen || src.addEOS {
			return fmt.Errorf("post_processor TemplateProcessing with %.40q: only one token before and one after the text are supported", s.SpecialToken.ID)
		}
		if seen {
			src.eos, src.addEOS = []int32{special.IDs[0]}, true
		} else {
			src.bos, src.addBOS = special.IDs[0], true
		}
	}
	if !seen {
		return errors.New("post_processor TemplateProcessing without the text isn't supported")
	}
	return nil
}

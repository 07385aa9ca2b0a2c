package model

import (
	"encoding/json"
	"errors"
	"fmt"

	"cotenant/internal/chat"
	"cotenant/internal/tokenizer"
	"cotenant/internal/weights"
)

var errNoTemplate = errors.New("the model has no chat template")

// loadTemplate reads the chat template of f.
func loadTemplate(f *weights.File, tok *tokenizer.Tokenizer) (*chat.Template, error) {
	text, err := templateText(f)
	if err != nil {
		return nil, err
	}
	var o chat.Options
	if id := tok.BOS(); id >= 0 {
		o.BOS = string(tok.TokenBytes(id))
	}
	if ids := tok.EOS(); len(ids) > 0 { // the most important one comes first
		o.EOS = string(tok.TokenBytes(ids[0]))
	}
	return chat.New(text, o)
}

// templateText returns the source of the model's chat template; errNoTemplate where there is none.
func templateText(f *weights.File) (string, error) {
	if f.Format() == weights.GGUF {
		text, ok, err := f.String("tokenizer.chat_template")
		if err == nil && !ok {
			err = errNoTemplate
		}
		return text, err
	}
	return hfTemplate(f)
}

// hfTemplate looks where transformers does: chat_template.jinja, else tokenizer_config.json, whose chat_template is a text
// or a list of named ones, of which "default" is meant.
func hfTemplate(f interface {
	Sidecar(name string) ([]byte, bool, error)
}) (string, error) {
	if text, ok, err := f.Sidecar("chat_template.jinja"); ok || err != nil {
		return string(text), err
	}
	data, ok, err := f.Sidecar("tokenizer_config.json")
	if err != nil {
		return "", err
	}
	var config struct {
		Template json.RawMessage `json:"chat_template"`
	}
	if ok {
		if err := json.Unmarshal(data, &config); err != nil {
			return "", fmt.Errorf("tokenizer_config.json: %w", err)
		}
	}
	if len(config.Template) == 0 || string(config.Template) == "null" {
		return "", errNoTemplate
	}
	var text string
	if json.Unmarshal(config.Template, &text) == nil {
		return text, nil
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(config.Template, &named); err != nil {
		return "", errors.New("tokenizer_config.json: chat_template is neither a text nor a list of named texts")
	}
	for _, t := range named {
		if t.Name == "default" {
			return t.Template, nil
		}
	}
	return "", errors.New(`tokenizer_config.json: chat_template has no template named "default"`)
}

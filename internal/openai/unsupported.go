package openai

import (
	"bytes"
	"strings"
)

// refuse reads a field that would change the answer in a way that isn't supported. Values that ask for nothing are let through:
// null, and those listed, as compact JSON.
func refuse[T any](neutral ...string) func(*requestReader, *T) error {
	return func(r *requestReader, _ *T) error {
		r.peek()
		from := r.i
		if r.skip(); r.err != nil {
			return r.syntax()
		}
		value := r.b[from:r.i]
		for _, n := range neutral {
			if compactEqual(value, n) {
				return nil
			}
		}
		param := r.param()
		e := BadRequest(param, "%s: not supported by this server", param)
		if len(neutral) > 0 {
			e.Message += "; leave it out, or send null or " + strings.Join(neutral, " or ")
		}
		e.Code = "unsupported_parameter"
		return e
	}
}

// compactEqual compares JSON with compact JSON, white space aside. Values with spaces inside strings are never equal, which is
// enough for the neutral ones.
func compactEqual(value []byte, compact string) bool {
	i := 0
	for _, b := range value {
		if bytes.IndexByte([]byte(" \t\r\n"), b) >= 0 {
			continue
		}
		if i == len(compact) || compact[i] != b {
			return false
		}
		i++
	}
	return i == len(compact)
}

var (
	unsupportedInBoth = refused(map[string][]string{
		// structured output
		"response_format": {`{"type":"text"}`}, "structured_outputs": {"{}"}, "grammar": {`""`}, "json_schema": {"{}"},
		"guided_json": nil, "guided_regex": nil, "guided_choice": nil, "guided_grammar": nil,
		// sampling and search
		"use_beam_search": {"false"}, "length_penalty": {"1", "1.0"}, "allowed_token_ids": {"[]"}, "bad_words": {"[]"},
		"logits_processors": {"[]"}, "typical_p": {"1", "1.0"}, "mirostat": {"0"}, "n_predict": nil,
		// form of the answer
		"include_stop_str_in_output": {"false"}, "skip_special_tokens": {"true"}, "return_tokens_as_token_ids": {"false"},
		"return_token_ids": {"false"}, "prompt_logprobs": nil,
		// the prompt
		"truncate_prompt_tokens": nil, "prompt_embeds": nil,
	})
	unsupportedInChat = refused(map[string][]string{
		"tools": {"[]"}, "tool_choice": {`"none"`}, "functions": {"[]"}, "function_call": {`"none"`},
		"audio": nil, "modalities": {`["text"]`}, "web_search_options": nil,
		"echo": {"false"}, "parse_special": {"false"}, "add_special_tokens": {"false"},
		"chat_template": nil, "chat_template_kwargs": {"{}"}, "documents": {"[]"}, "best_of": {"1"},
	})
	unsupportedInCompletion = refused(map[string][]string{
		"best_of": {"1"}, "suffix": {`""`}, "add_special_tokens": {"true"}, "tools": {"[]"},
	})
)

func refused(names map[string][]string) fields[Request] {
	table := fields[Request]{}
	for name, neutral := range names {
		table[name] = refuse[Request](neutral...)
	}
	return table
}

package openai

import "math"

// Limits of a request.
const (
	MaxChoices      = 8       // n
	MaxAllChoices   = 128     // prompts times n
	MaxPromptTokens = 1 << 20 // of one prompt that is given as token ids; no model that is read here has a longer context
	MaxStops        = 16
	MaxStopBytes    = 1024
	MaxTopLogprobs  = 20
	MaxBiases       = 1024
	maxSaltBytes    = 1024
)

// DefaultCompletionTokens is what OpenAI's completions API generates where max_tokens is absent; chat has no such limit.
const DefaultCompletionTokens = 16

// Request is a decoded request of either API: Messages for chat, Prompts for completions. Absent fields have OpenAI's defaults.
type Request struct {
	Model    string
	Messages []Message
	Prompts  []Prompt

	Stream          bool
	IncludeUsage    bool // stream_options.include_usage
	ContinuousUsage bool // stream_options.continuous_usage_stats (vLLM), which needs include_usage: running counts in every chunk
	N               int

	MaxTokens         int  // < 0: no limit was given
	MaxTokensExplicit bool // max_tokens or max_completion_tokens was given
	MinTokens         int
	Stop              []string
	StopTokens        []int32 // stop_token_ids (vLLM)
	IgnoreEOS         bool

	Temperature       float64
	TopP              float64
	TopK              int // 0: off
	MinP              float64
	PresencePenalty   float64
	FrequencyPenalty  float64
	RepetitionPenalty float64
	LogitBias         map[int32]float32
	Seed              *int64

	Logprobs    bool
	TopLogprobs int

	Echo          bool // completions: the prompt comes first in the text
	ParseSpecial  bool // completions: control tokens in a text prompt are recognised
	ContinueFinal bool // chat: continue_final_message (vLLM)
	CacheSalt     string

	maxTokens, maxCompletionTokens *int
	streamOptions                  bool
	addGenerationPrompt            *bool
	topLogprobs                    *int
}

// Message is one chat message. Parts of a list content are joined with a line feed, as vLLM and llama.cpp do.
type Message struct{ Role, Name, Content string }

// Prompt is one completion prompt: a text or token ids.
type Prompt struct {
	Text   string
	Tokens []int32 // not nil: the prompt is these tokens
}

// DecodeChat decodes the body of a chat completion request. Every error is an *Error with status 400.
func DecodeChat(body []byte) (*Request, error) {
	q, err := decode(body, chatFields)
	if err != nil {
		return nil, err
	}
	if len(q.Messages) == 0 {
		return nil, BadRequest("messages", "messages: at least one message is needed")
	}
	if q.MaxTokensExplicit && q.MaxTokens < 1 {
		return nil, BadRequest(q.maxTokensName(), "%s: must be at least 1", q.maxTokensName())
	}
	if q.topLogprobs != nil && !q.Logprobs {
		return nil, BadRequest("top_logprobs", "top_logprobs: needs logprobs to be true")
	}
	if q.topLogprobs != nil {
		q.TopLogprobs = *q.topLogprobs
	}
	last := q.Messages[len(q.Messages)-1].Role
	if q.ContinueFinal && last != "assistant" {
		return nil, BadRequest("continue_final_message", "continue_final_message: the last message must be the assistant's, not the %s's", last)
	}
	if q.addGenerationPrompt != nil && *q.addGenerationPrompt == q.ContinueFinal {
		return nil, BadRequest("add_generation_prompt", "add_generation_prompt: must be the opposite of continue_final_message")
	}
	return q, nil
}

// DecodeCompletion decodes the body of a completion request. Every error is an *Error with status 400.
func DecodeCompletion(body []byte) (*Request, error) {
	q, err := decode(body, completionFields)
	if err != nil {
		return nil, err
	}
	if len(q.Prompts) == 0 {
		return nil, BadRequest("prompt", "prompt: is missing or empty")
	}
	if all := len(q.Prompts) * q.N; all > MaxAllChoices {
		return nil, BadRequest("prompt", "prompt: %d prompts times n %d are %d choices; at most %d are allowed", len(q.Prompts), q.N, all, MaxAllChoices)
	}
	if !q.MaxTokensExplicit {
		q.MaxTokens = DefaultCompletionTokens
	}
	if q.MaxTokens == 0 && !q.Echo {
		return nil, BadRequest(q.maxTokensName(), "%s: may be 0 only with echo", q.maxTokensName())
	}
	if err := q.checkMinTokens(); err != nil {
		return nil, err
	}
	return q, nil
}

func decode(body []byte, table fields[Request]) (*Request, error) {
	r, err := newRequestReader(body)
	if err != nil {
		return nil, err
	}
	q := &Request{N: 1, MaxTokens: -1, Temperature: 1, TopP: 1, RepetitionPenalty: 1}
	if err := object(r, table, q); err != nil {
		return nil, err
	}
	if r.end(); r.err != nil {
		return nil, r.syntax()
	}
	if q.Model == "" {
		return nil, BadRequest("model", "model: is missing; GET /v1/models lists what is served")
	}
	if q.streamOptions && !q.Stream {
		return nil, BadRequest("stream_options", "stream_options: allowed only with stream true")
	}
	q.ContinuousUsage = q.ContinuousUsage && q.IncludeUsage
	limit := q.maxCompletionTokens // supersedes max_tokens, which most clients still send
	if limit == nil {
		limit = q.maxTokens
	}
	if limit != nil {
		q.MaxTokens, q.MaxTokensExplicit = *limit, true
	}
	return q, q.checkMinTokens()
}

func (q *Request) checkMinTokens() error {
	if q.MaxTokens >= 0 && q.MinTokens > q.MaxTokens {
		return BadRequest("min_tokens", "min_tokens: %d is more than the %d tokens that may be generated", q.MinTokens, q.MaxTokens)
	}
	return nil
}

func (q *Request) maxTokensName() string {
	if q.maxCompletionTokens != nil {
		return "max_completion_tokens"
	}
	return "max_tokens"
}

// bothFields are the fields of both APIs.
var bothFields = fields[Request]{
	"model":                 func(r *requestReader, q *Request) (err error) { q.Model, err = r.string(); return },
	"stream":                func(r *requestReader, q *Request) (err error) { q.Stream, err = r.bool(); return },
	"stream_options":        readStreamOptions,
	"n":                     func(r *requestReader, q *Request) (err error) { q.N, err = readInt(r, 1, MaxChoices); return },
	"max_tokens":            func(r *requestReader, q *Request) error { return readLimit(r, &q.maxTokens) },
	"max_completion_tokens": func(r *requestReader, q *Request) error { return readLimit(r, &q.maxCompletionTokens) },
	"min_tokens": func(r *requestReader, q *Request) (err error) {
		q.MinTokens, err = readInt(r, 0, math.MaxInt32)
		return
	},
	"stop":               readStop,
	"stop_token_ids":     func(r *requestReader, q *Request) (err error) { q.StopTokens, err = readTokens(r, MaxStops); return },
	"ignore_eos":         func(r *requestReader, q *Request) (err error) { q.IgnoreEOS, err = r.bool(); return },
	"temperature":        func(r *requestReader, q *Request) (err error) { q.Temperature, err = r.float(0, 2); return },
	"top_p":              func(r *requestReader, q *Request) error { return readPositive(r, &q.TopP, 1) },
	"top_k":              readTopK,
	"min_p":              func(r *requestReader, q *Request) (err error) { q.MinP, err = r.float(0, 1); return },
	"presence_penalty":   func(r *requestReader, q *Request) (err error) { q.PresencePenalty, err = r.float(-2, 2); return },
	"frequency_penalty":  func(r *requestReader, q *Request) (err error) { q.FrequencyPenalty, err = r.float(-2, 2); return },
	"repetition_penalty": func(r *requestReader, q *Request) error { return readPositive(r, &q.RepetitionPenalty, 10) },
	"logit_bias":         readLogitBias,
	"seed":               readSeed,
	"cache_salt":         readCacheSalt,
}

var chatFields = join(bothFields, unsupportedInBoth, unsupportedInChat, fields[Request]{
	"messages":               readMessages,
	"logprobs":               func(r *requestReader, q *Request) (err error) { q.Logprobs, err = r.bool(); return },
	"top_logprobs":           func(r *requestReader, q *Request) error { return readPointer(r, &q.topLogprobs, 0, MaxTopLogprobs) },
	"continue_final_message": func(r *requestReader, q *Request) (err error) { q.ContinueFinal, err = r.bool(); return },
	"add_generation_prompt": func(r *requestReader, q *Request) error {
		b, err := r.bool()
		q.addGenerationPrompt = &b
		return err
	},
})

var completionFields = join(bothFields, unsupportedInBoth, unsupportedInCompletion, fields[Request]{
	"prompt":        readPrompts,
	"echo":          func(r *requestReader, q *Request) (err error) { q.Echo, err = r.bool(); return },
	"parse_special": func(r *requestReader, q *Request) (err error) { q.ParseSpecial, err = r.bool(); return },
	"logprobs": func(r *requestReader, q *Request) (err error) {
		q.Logprobs = true
		q.TopLogprobs, err = readInt(r, 0, MaxTopLogprobs)
		return
	},
})

// join merges tables; a field in two of them is a mistake in this package.
func join(tables ...fields[Request]) fields[Request] {
	all := fields[Request]{}
	for _, t := range tables {
		for name, read := range t {
			if all[name] != nil {
				panic("internal error: field " + name + " is in two tables")
			}
			all[name] = read
		}
	}
	return all
}

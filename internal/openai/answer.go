package openai

import "strconv"

// Envelope is what every object of one answer repeats.
type Envelope struct {
	Chat        bool // chat completion, else text completion
	ID          string
	Created     int64 // Unix seconds
	Model       string
	Fingerprint string // system_fingerprint
}

// Usage counts the tokens of one answer: the prompts once, the completions of all choices together.
type Usage struct{ Prompt, Completion, Cached int }

// Choice is one finished choice of an answer that isn't streamed.
type Choice struct {
	Index        int
	Text         string
	Logprobs     []TokenLogprob
	HasLogprobs  bool
	FinishReason string
	StopReason   string // the stop string that matched; left out when empty (vLLM)
}

// head appends an object up to and with the bracket that opens its choices.
func (e *Envelope) head(dst []byte, object string) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, e.ID)
	dst = append(dst, `,"object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, e.Created, 10)
	dst = append(dst, `,"model":`...)
	dst = appendString(dst, e.Model)
	dst = append(dst, `,"system_fingerprint":`...)
	dst = appendOptional(dst, e.Fingerprint)
	return append(dst, `,"choices":[`...)
}

// AppendAnswer renders a whole answer: chat.completion or text_completion.
func (e *Envelope) AppendAnswer(dst []byte, choices []Choice, u Usage) []byte {
	object := "text_completion"
	if e.Chat {
		object = "chat.completion"
	}
	dst = e.head(dst, object)
	for i := range choices {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = e.appendChoice(dst, &choices[i])
	}
	dst = append(dst, `],"usage":`...)
	dst = u.append(dst)
	return append(dst, '}')
}

func (e *Envelope) appendChoice(dst []byte, c *Choice) []byte {
	dst = append(dst, `{"index":`...)
	dst = appendInt(dst, c.Index)
	if e.Chat {
		dst = append(dst, `,"message":{"role":"assistant","content":`...)
		dst = appendString(dst, c.Text)
		dst = append(dst, `,"refusal":null}`...)
	} else {
		dst = append(dst, `,"text":`...)
		dst = appendString(dst, c.Text)
	}
	dst = append(dst, `,"logprobs":`...)
	switch {
	case !c.HasLogprobs:
		dst = append(dst, "null"...)
	case e.Chat:
		dst = appendChatLogprobs(dst, c.Logprobs)
	default:
		var offset textOffset
		dst = appendCompletionLogprobs(dst, c.Logprobs, &offset)
	}
	return append(appendFinish(dst, c.FinishReason, c.StopReason), '}')
}

func appendFinish(dst []byte, reason, stop string) []byte {
	dst = append(dst, `,"finish_reason":`...)
	dst = appendOptional(dst, reason)
	if stop != "" {
		dst = append(dst, `,"stop_reason":`...)
		dst = appendString(dst, stop)
	}
	return dst
}

func (u *Usage) append(dst []byte) []byte {
	dst = append(dst, `{"prompt_tokens":`...)
	dst = appendInt(dst, u.Prompt)
	dst = append(dst, `,"completion_tokens":`...)
	dst = appendInt(dst, u.Completion)
	dst = append(dst, `,"total_tokens":`...)
	dst = appendInt(dst, u.Prompt+u.Completion)
	dst = append(dst, `,"prompt_tokens_details":{"cached_tokens":`...)
	dst = appendInt(dst, u.Cached)
	return append(dst, "}}"...)
}

// Model is an entry of the model list.
type Model struct {
	ID            string
	Created       int64
	OwnedBy       string
	ContextLength int // rendered as max_model_len, the name that vLLM's clients read
}

// Append renders the model object.
func (m *Model) Append(dst []byte) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, m.ID)
	dst = append(dst, `,"object":"model","created":`...)
	dst = strconv.AppendInt(dst, m.Created, 10)
	dst = append(dst, `,"owned_by":`...)
	dst = appendString(dst, m.OwnedBy)
	dst = append(dst, `,"max_model_len":`...)
	dst = appendInt(dst, m.ContextLength)
	return append(dst, '}')
}

// AppendModels renders the model list.
func AppendModels(dst []byte, models []Model) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = models[i].Append(dst)
	}
	return append(dst, "]}"...)
}

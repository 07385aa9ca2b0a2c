package server

import (
	"context"
	"errors"
	"time"
)

// Generator produces text with one model. It is safe for concurrent use. Package engine's Engine is one.
type Generator interface {
	Model() ModelInfo
	// Prepare renders and tokenises. A failure that the client can mend is a *RequestError.
	Prepare(ctx context.Context, in Input) (Prompt, error)
	// Generate queues one request and returns its stream. Errors: *RequestError, ErrQueueFull, ErrUnavailable.
	// Cancelling ctx ends the request within one step and frees its pages.
	Generate(ctx context.Context, p Prompt, s Sampling) (Stream, error)
	Stats() Stats
	// Health is nil while requests can be served; after a device error it returns that error for ever.
	Health() error
}

// Sentinels for what Generate can refuse with.
var (
	ErrQueueFull   = errors.New("queue is full")
	ErrUnavailable = errors.New("server is not taking requests")
)

// RequestError is a 400: what is wrong with the request, in OpenAI's terms.
type RequestError struct {
	Message string
	Param   string // field at fault, may be empty
	Code    string // for instance context_length_exceeded, may be empty
}

func (e *RequestError) Error() string { return e.Message }

// ModelInfo describes the model that a Generator serves.
type ModelInfo struct {
	ID            string // served name
	Created       time.Time
	ContextLength int // tokens, prompt and answer together
	VocabSize     int
}

// Message is one chat message; Content is its parts joined.
type Message struct{ Role, Name, Content string }

// Input is what a prompt is made from: exactly one of Messages, Text (with HasText) and Tokens.
type Input struct {
	Messages     []Message
	Text         string
	HasText      bool
	Tokens       []int32
	ParseSpecial bool // control tokens in Text are recognised
	// ContinueFinal renders an assistant message that comes last as the start of the answer.
	ContinueFinal bool
}

// Prompt is a tokenised prompt. Text is what the tokens stand for, for echo.
type Prompt struct {
	Tokens []int32
	Text   string
	Added  int // leading tokens that Text doesn't hold: BOS
}

// Sampling says how to choose tokens and when to stop. The zero value of a field means "off", but for Temperature
// (0 is greedy) and TopP, RepetitionPenalty (0 is read as 1).
type Sampling struct {
	MaxTokens         int  // < 0: up to the context's end; 0: the prompt alone (PromptLogprobs), finish reason length
	MaxTokensExplicit bool // a prompt plus MaxTokens beyond the context is a RequestError
	MinTokens         int
	N                 int // choices, 1…8
	Temperature       float32
	TopK              int
	TopP, MinP        float32
	PresencePenalty   float32
	FrequencyPenalty  float32
	RepetitionPenalty float32
	Seed              *int64 // nil: one is drawn
	LogitBias         map[int32]float32
	Stop              []string
	StopTokens        []int32
	IgnoreEOS         bool
	Logprobs          bool
	TopLogprobs       int  // 0…20 alternatives a token
	PromptLogprobs    bool // logprobs for prompt tokens too (echo)
	CacheSalt         string
}

// Stream delivers a request's chunks; one goroutine reads it.
type Stream interface {
	// Next blocks for the next chunk; io.EOF after every choice has finished. ctx bounds this wait alone: after its error the
	// stream goes on, no chunk is lost, and Next may be called again. Any other error ends the stream.
	Next(ctx context.Context) (Chunk, error)
	// Close cancels what still runs. It may be called at any time, also after the end.
	Close()
}

// Chunk is new output of one choice. Text is whole UTF-8, never part of a stop string.
type Chunk struct {
	Index        int // choice
	Text         string
	Tokens       []Token // tokens that became visible with Text; with logprobs their values. A token that ended the choice is the last
	Prompt       []Token // PromptLogprobs: the prompt's tokens, once, on the first chunk of choice 0
	FinishReason string  // "", stop, length
	StopReason   string  // the stop string that matched, if any
	Usage        Usage   // counts of this choice so far
}

// Token is a token of the output with its bytes and, where asked for, log-probabilities (natural log, of the raw
// distribution before temperature and penalties; never -Inf: at least -9999). It has no bytes where it is no part of the text:
// control tokens of an answer, the one that ended it, and those of a prompt that were added to it.
type Token struct {
	ID      int32
	Bytes   []byte
	Logprob float32
	Top     []TopToken
	First   bool // first token of the prompt: no log-probability
}

// TopToken is an alternative, most likely first.
type TopToken struct {
	ID      int32
	Bytes   []byte
	Logprob float32
}

// Usage counts tokens of one choice.
type Usage struct{ PromptTokens, CompletionTokens, CachedTokens int }

// Stats is a snapshot for /metrics. Counters start at 0 with the process.
type Stats struct {
	PagesUsed, PagesFree, PagesCached int // KV pages by state; cached ones hold reusable prefixes and no sequence
	PageTokens                        int // tokens in a page
	Slots                             int // sequences that hold pages
	Running, Waiting                  int // requests
	QueueDepth                        int
	QueueOldestAge                    time.Duration
	QueueWait                         Histogram        // seconds
	Memory                            map[string]int64 // bytes of host memory by kind
	DeviceMemory                      map[string]int64 // bytes of device memory by kind; nil: no device
	GPUMemory                         map[string]int64 // bytes of all the device's memory by holder: own, other, free; nil: not known
	StepWeightBytes                   int64            // of weight matrices that a step of one row reads
	PrefixQueryTokens                 uint64           // prompt tokens looked up, once a request
	PrefixHitTokens                   uint64           // of these, found: the sum of usage's cached tokens
	PromptTokens                      uint64           // computed or cached, of requests that were admitted
	GeneratedTokens                   uint64
	Preemptions                       uint64
	NonFiniteRows                     uint64
	Steps                             uint64
	StepTokens                        Histogram // tokens a step
	Backend, Device                   string
}

// Histogram is cumulative counts over upper bounds, the last (+Inf) being Count.
type Histogram struct {
	Bounds []float64
	Counts []uint64
	Count  uint64
	Sum    float64
}

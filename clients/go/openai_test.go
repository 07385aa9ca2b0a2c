// Package clients runs the official Go client against a running server, named by COTENANT_URL (http://host:port).
// COTENANT_TEST_MODEL picks a model, else the first that the server lists; COTENANT_API_KEY is the server's key, where it has one.
// Nothing here depends on what the model says.
package clients

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

var (
	url    = strings.TrimRight(os.Getenv("COTENANT_URL"), "/")
	key    = os.Getenv("COTENANT_API_KEY")
	model  = os.Getenv("COTENANT_TEST_MODEL")
	client openai.Client
)

func connect(key string) openai.Client {
	return openai.NewClient(option.WithBaseURL(url+"/v1/"), option.WithAPIKey(key), option.WithMaxRetries(0))
}

func TestMain(m *testing.M) {
	if url == "" {
		fmt.Fprintln(os.Stderr, "set COTENANT_URL to the address of a running server")
		os.Exit(2)
	}
	client = connect(cmp.Or(key, "none"))
	if model == "" {
		page, err := client.Models.List(context.Background())
		if err != nil || len(page.Data) == 0 {
			fmt.Fprintln(os.Stderr, "no model to test with:", err)
			os.Exit(2)
		}
		model = page.Data[0].ID
	}
	os.Exit(m.Run())
}

func chatParams() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:               model,
		Messages:            []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Name three colours of the rainbow.")},
		MaxCompletionTokens: openai.Int(6),
	}
}

func TestModels(t *testing.T) {
	m, err := client.Models.Get(t.Context(), model)
	if err != nil || m.ID != model || m.Created == 0 || m.OwnedBy == "" {
		t.Errorf("%+v %v", m, err)
	}
}

func TestChat(t *testing.T) {
	r, err := client.Chat.Completions.New(t.Context(), chatParams())
	if err != nil {
		t.Fatal(err)
	}
	c := r.Choices[0]
	if !strings.HasPrefix(r.ID, "chatcmpl-") || c.Message.Role != "assistant" || c.Message.Content == "" || c.FinishReason != "stop" && c.FinishReason != "length" {
		t.Errorf("%s", r.RawJSON())
	}
	u := r.Usage
	if u.TotalTokens != u.PromptTokens+u.CompletionTokens || u.CompletionTokens < 1 || u.CompletionTokens > 6 || !u.PromptTokensDetails.JSON.CachedTokens.Valid() {
		t.Errorf("%s", u.RawJSON())
	}
}

func TestChatStreamWithUsage(t *testing.T) {
	p := chatParams()
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Chat.Completions.NewStreaming(t.Context(), p)
	defer stream.Close()
	var acc openai.ChatCompletionAccumulator
	var text strings.Builder
	chunks := 0
	for stream.Next() {
		chunk := stream.Current()
		if !acc.AddChunk(chunk) {
			t.Fatalf("the accumulator refuses %s", chunk.RawJSON())
		}
		if chunks == 0 && chunk.Choices[0].Delta.Role != "assistant" {
			t.Errorf("first chunk: %s", chunk.RawJSON())
		}
		for _, c := range chunk.Choices {
			text.WriteString(c.Delta.Content)
		}
		chunks++
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if len(acc.Choices) != 1 || acc.Choices[0].Message.Content != text.String() || text.Len() == 0 || acc.Choices[0].FinishReason == "" || acc.Usage.CompletionTokens == 0 {
		t.Errorf("%+v", acc.ChatCompletion)
	}
}

func TestChatChoicesAndLogprobs(t *testing.T) {
	p := chatParams()
	p.N, p.Logprobs, p.TopLogprobs = openai.Int(3), openai.Bool(true), openai.Int(2)
	r, err := client.Chat.Completions.New(t.Context(), p)
	if err != nil || len(r.Choices) != 3 {
		t.Fatalf("%+v %v", r, err)
	}
	for i, c := range r.Choices {
		if int(c.Index) != i || len(c.Logprobs.Content) == 0 {
			t.Errorf("choice %d: %s", i, c.RawJSON())
		}
		for _, tok := range c.Logprobs.Content {
			if tok.Logprob > 0 || !tok.JSON.Bytes.Valid() || len(tok.TopLogprobs) != 2 {
				t.Errorf("choice %d: %s", i, tok.RawJSON())
			}
		}
	}
}

func TestCompletions(t *testing.T) {
	p := openai.CompletionNewParams{Model: openai.CompletionNewParamsModel(model), MaxTokens: openai.Int(2), N: openai.Int(2),
		Echo: openai.Bool(true), Logprobs: openai.Int(2), Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"a b", "c d"}}}
	r, err := client.Completions.New(t.Context(), p)
	if err != nil || len(r.Choices) != 4 {
		t.Fatalf("%+v %v", r, err)
	}
	for i, c := range r.Choices {
		if want := []string{"a b", "c d"}[i/2]; int(c.Index) != i || !strings.HasPrefix(c.Text, want) || len(c.Logprobs.Tokens) != len(c.Logprobs.TextOffset) {
			t.Errorf("choice %d: %s", i, c.RawJSON())
		}
	}
	stream := client.Completions.NewStreaming(t.Context(), openai.CompletionNewParams{Model: openai.CompletionNewParamsModel(model),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("a b")}, MaxTokens: openai.Int(3)})
	finish := ""
	for stream.Next() {
		finish = string(stream.Current().Choices[0].FinishReason)
	}
	if stream.Err() != nil || finish == "" {
		t.Errorf("stream ends with %q, %v", finish, stream.Err())
	}
}

func TestErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(p *openai.ChatCompletionNewParams)
		status int
		param  string
		code   string
	}{
		"range":    {func(p *openai.ChatCompletionNewParams) { p.Temperature = openai.Float(3) }, 400, "temperature", ""},
		"messages": {func(p *openai.ChatCompletionNewParams) { p.Messages = []openai.ChatCompletionMessageParamUnion{} }, 400, "messages", ""},
		"model":    {func(p *openai.ChatCompletionNewParams) { p.Model = "no-such-model" }, 404, "model", "model_not_found"},
		"context":  {func(p *openai.ChatCompletionNewParams) { p.MaxCompletionTokens = openai.Int(100_000_000) }, 400, "", "context_length_exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			p := chatParams()
			tt.change(&p)
			check := func(err error) {
				t.Helper()
				var e *openai.Error
				if !errors.As(err, &e) || e.StatusCode != tt.status || e.Code != tt.code || tt.param != "" && e.Param != tt.param || e.Message == "" {
					t.Errorf("%v", err)
				}
			}
			_, err := client.Chat.Completions.New(t.Context(), p)
			check(err)
			stream := client.Chat.Completions.NewStreaming(t.Context(), p)
			for stream.Next() {
				t.Errorf("a chunk: %s", stream.Current().RawJSON())
			}
			check(stream.Err())
		})
	}
}

// TestKey: a server with a key refuses another; one without takes any.
func TestKey(t *testing.T) {
	other := connect("wrong-" + key)
	_, err := other.Models.List(t.Context())
	if key == "" {
		if err != nil {
			t.Error(err)
		}
		return
	}
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != 401 || e.Code != "invalid_api_key" {
		t.Errorf("%v", err)
	}
}

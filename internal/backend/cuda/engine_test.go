package cuda

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"cotenant/internal/engine"
	"cotenant/internal/loadgen"
	"cotenant/internal/model"
	"cotenant/internal/server"
)

// TestConversations asks the embedded model, through the whole engine, what `soak` asks: many contexts at once over one base, two turns
// each, some bases of their own, so that prompts, graphs of many sizes and shared pages are mixed in all ways. Every answer that the
// oracle knows is right, in every round.
func TestConversations(t *testing.T) {
	o := Options{Rows: 64}
	if playsDriver() {
		o.Library = fake(t)
	}
	e, err := engine.New(engine.Config{ID: "m", MaxSeqs: 64, MaxBatchTokens: 2048, KVMemory: 64 << 20}, func() (engine.Runtime, error) {
		be, err := New(o)
		if err != nil {
			return engine.Runtime{}, err
		}
		m, err := model.LoadEmbedded(be, model.Options{MaxBatchTokens: 2048, OutputChunk: 64})
		if err != nil {
			return engine.Runtime{}, errors.Join(err, be.Close())
		}
		return engine.FromModel(m, be), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	contexts, rounds := 24, 1
	if !playsDriver() {
		contexts, rounds = 256, 4
	}
	for round := range rounds {
		shared, err := loadgen.New(loadgen.Options{Seed: uint64(round), BaseTokens: loadgen.MinBaseTokens})
		if err != nil {
			t.Fatal(err)
		}
		unique, err := loadgen.New(loadgen.Options{Seed: uint64(round), BaseTokens: loadgen.MinBaseTokens, Unique: true})
		if err != nil {
			t.Fatal(err)
		}
		right := make([]bool, 2*contexts)
		slots := make(chan struct{}, 64)
		var wg sync.WaitGroup
		for c := range contexts {
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				work := shared
				if c%8 == 7 {
					work = unique
				}
				var said []server.Message
				for turn := range 2 {
					task := work.Turn(int64(c), int64(turn))
					messages := []server.Message{message(task.Messages[0])}
					messages = append(messages, said...)
					question := message(task.Messages[len(task.Messages)-1])
					messages = append(messages, question)
					answer := ask(t, e, messages)
					right[2*c+turn] = task.Check(answer)
					said = append(said, question, server.Message{Role: "assistant", Content: answer})
				}
			})
		}
		wg.Wait()
		wrong := [2]int{}
		for i, ok := range right {
			if !ok {
				wrong[i%2]++
			}
		}
		// The model itself misses about one question of a thousand over a base of its own.
		if most := 1 + contexts/100; wrong[0]+wrong[1] > most {
			t.Errorf("round %d: %d answers of turn 0 and %d of turn 1 are wrong, of %d each", round, wrong[0], wrong[1], contexts)
		}
	}
}

func message(m loadgen.Message) server.Message {
	return server.Message{Role: m.Role, Content: m.Content}
}

func ask(t *testing.T, e *engine.Engine, messages []server.Message) string {
	ctx := context.Background()
	p, err := e.Prepare(ctx, server.Input{Messages: messages})
	if err != nil {
		t.Error(err)
		return ""
	}
	st, err := e.Generate(ctx, p, server.Sampling{MaxTokens: 12})
	if err != nil {
		t.Error(err)
		return ""
	}
	defer st.Close()
	text := ""
	for {
		c, err := st.Next(ctx)
		if err == io.EOF {
			return text
		}
		if err != nil {
			t.Error(err)
			return text
		}
		text += c.Text
	}
}

package loadgen

// Challenged returns a source whose prompts all begin with a verifier's nonce: the first message of each starts with the line
// "Challenge NONCE". Whoever holds such prompts can't have made them, or had them answered, before the nonce was known. The base that
// contexts share holds the line too, so that its prefix can be reused. Name and Hash stay those of src: runs of the same work under two
// challenges are still of the same work. An empty nonce returns src.
func Challenged(src Source, nonce string) Source {
	if nonce == "" {
		return src
	}
	c := challenged{src, "Challenge " + nonce + "\n"}
	if conversations, ok := src.(Conversations); ok {
		return challengedConversations{c, conversations}
	}
	return c
}

type challenged struct {
	Source
	line string
}

func (c challenged) Base() string {
	if base := c.Source.Base(); base != "" {
		return c.line + base
	}
	return ""
}

func (c challenged) Task(context int64) Task { return c.put(c.Source.Task(context)) }

// put leaves the source's own messages as they are: a source may hand the same ones out again.
func (c challenged) put(t Task) Task {
	messages := make([]Message, len(t.Messages))
	copy(messages, t.Messages)
	if len(messages) > 0 {
		messages[0].Content = c.line + messages[0].Content
	}
	t.Messages = messages
	return t
}

type challengedConversations struct {
	challenged
	more Conversations
}

func (c challengedConversations) Turn(context, turn int64) Task {
	return c.put(c.more.Turn(context, turn))
}

// Canary is asked over a base of this source, which has the line already.
func (c challengedConversations) Canary(n int64, base string) Task { return c.more.Canary(n, base) }

func (c challengedConversations) BadBase() string { return c.line + c.more.BadBase() }

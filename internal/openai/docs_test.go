package openai

import (
	"os"
	"strings"
	"testing"
)

// TestEveryFieldIsDocumented: a field that is decoded stands in docs/api.md.
func TestEveryFieldIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []fields[Request]{chatFields, completionFields} {
		for name := range table {
			_, both := unsupportedInBoth[name]
			_, chat := unsupportedInChat[name]
			_, completion := unsupportedInCompletion[name]
			if !both && !chat && !completion && !strings.Contains(string(text), "`"+name+"`") {
				t.Errorf("docs/api.md doesn't name %s", name)
			}
		}
	}
}

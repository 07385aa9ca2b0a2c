package inspect

import (
	"os"
	"testing"

	"cotenant/internal/bounded"
	"cotenant/internal/gputest"
)

func TestMain(m *testing.M) {
	bounded.ServeChild(Tasks())
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

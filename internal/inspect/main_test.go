package inspect

import (
	"os"
	"testing"

	"cotenant/internal/bounded"
	"cotenant/internal/gputest"
)

func TestMain(m *testing.M) {
	bounded.ServeChild(Tasks())
	traced()
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

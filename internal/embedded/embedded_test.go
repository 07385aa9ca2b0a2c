package embedded

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestFileIsTheOneInTheREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(GGUF()))
	if !strings.Contains(string(readme), sum) {
		t.Errorf("README.md doesn't name the file's SHA-256 %s", sum)
	}
	if n := len(GGUF()); n > 4<<20 {
		t.Errorf("the embedded model takes %d bytes, more than 4 MiB", n)
	}
}

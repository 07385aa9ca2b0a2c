package queue

import (
	"strings"
	"testing"
)

func TestCheckAddress(t *testing.T) {
	for _, good := range []string{"nats://127.0.0.1:4222", "tls://a.example", "nats://user:word@a:1,nats://[::1]:2", "nats://a:1, nats://b:1/"} {
		if err := CheckAddress(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "embeded", "127.0.0.1:4222", "http://a:1", "nats://", "nats://:4222", "nats://a:b", "nats://secretword@a:1,", "nats://secretword@a:x",
		"nats://a:1/00000000000000000000000000000000"} {
		if err := CheckAddress(bad); err == nil || strings.Contains(err.Error(), "secretword") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

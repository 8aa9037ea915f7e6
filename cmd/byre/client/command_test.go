package client

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// An answer is yes or no; the end of the context, or of what is read, is neither.
func TestIsYes_EndsWithTheContext(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, "y": true, "\n": false, "no\n": false} {
		if yes, err := IsYes(t.Context(), strings.NewReader(answer)); yes != want || err != nil {
			t.Errorf("%q: %v, %v", answer, yes, err)
		}
	}
	if yes, err := IsYes(t.Context(), strings.NewReader("")); yes || err == nil || !strings.Contains(err.Error(), "nobody answered") {
		t.Errorf("without an answer: %v, %v", yes, err)
	}
	in, out := io.Pipe()
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if yes, err := IsYes(ctx, in); yes || !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v, %v", yes, err)
	}
}

package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// An answer is yes or no; the end of the context is neither.
func TestIsYes_EndsWithTheContext(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, "": false, "no\n": false} {
		if yes, err := IsYes(t.Context(), strings.NewReader(answer)); yes != want || err != nil {
			t.Errorf("%q: %v, %v", answer, yes, err)
		}
	}
	in, out := io.Pipe()
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if yes, err := IsYes(ctx, in); yes || !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v, %v", yes, err)
	}
}

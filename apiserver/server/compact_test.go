package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
)

// TestCompact_TakesDays: the request takes the durations that the command takes.
func TestCompact_TakesDays(t *testing.T) {
	t.Parallel()
	s := &storageBackend{Backend: storage.Backend{Store: sqlstore.New(storetest.NewModel(), sqlstore.Options{})}}
	for keep, want := range map[string]bool{"2d": true, "1h": true, "2x": false, "-1h": false, "": false} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, CompactPath+"?keep="+keep, nil)
		if result, err := s.compact(r); result.Done != want || (err == nil) != want {
			t.Errorf("keep=%s: %+v, %v", keep, result, err)
		}
	}
}

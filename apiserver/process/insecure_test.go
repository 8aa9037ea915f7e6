package process

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestWithLocalOrigin_RefusesPagesOfOtherHosts(t *testing.T) {
	handler := WithLocalOrigin(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	tests := []struct {
		host, origin, site string
		want               int
	}{
		{"localhost", "", "", http.StatusOK},
		{"LocalHost:8080", "", "", http.StatusOK},
		{"127.0.0.1:8080", "", "", http.StatusOK},
		{"127.9.9.9", "", "", http.StatusOK},
		{"[::1]", "", "", http.StatusOK},
		{"[::1]:8080", "", "", http.StatusOK},
		{"localhost:8080", "http://localhost:8080", "", http.StatusOK},
		{"localhost:8080", "http://localhost:8080", "same-origin", http.StatusOK},
		{"localhost:8080", "", "none", http.StatusOK},
		{"[::1]:8080", "http://[::1]:8080", "same-origin", http.StatusOK},
		{"localhost", "http://localhost", "", http.StatusOK},

		{"", "", "", http.StatusForbidden},
		{"rebound.example", "", "", http.StatusForbidden},
		{"rebound.example:8080", "", "", http.StatusForbidden},
		{"localhost.rebound.example", "", "", http.StatusForbidden},
		{"127.0.0.1.rebound.example:8080", "", "", http.StatusForbidden},
		{"192.0.2.1:8080", "", "", http.StatusForbidden},
		{"0.0.0.0:8080", "", "", http.StatusForbidden},
		{"[::]:8080", "", "", http.StatusForbidden},
		{"[2001:db8::1]:8080", "", "", http.StatusForbidden},
		{"localhost:8080", "https://page.example", "", http.StatusForbidden},
		{"localhost:8080", "https://localhost.page.example", "", http.StatusForbidden},
		{"localhost:8080", "null", "", http.StatusForbidden},
		{"localhost:8080", "%", "", http.StatusForbidden},
		{"localhost:8080", "", "cross-site", http.StatusForbidden},
		// pages of another port of this machine
		{"localhost:8080", "http://localhost:3000", "", http.StatusForbidden},
		{"localhost:8080", "http://localhost", "", http.StatusForbidden},
		{"localhost:8080", "https://localhost:8080", "", http.StatusForbidden},
		{"localhost:8080", "http://127.0.0.1:8080", "", http.StatusForbidden},
		{"localhost:8080", "file://localhost:8080", "", http.StatusForbidden},
		{"localhost:8080", "", "same-site", http.StatusForbidden},
	}
	for _, test := range tests {
		r := httptest.NewRequest(http.MethodGet, "/api", nil)
		r.Host = test.host
		if test.origin != "" {
			r.Header.Set("Origin", test.origin)
		}
		if test.site != "" {
			r.Header.Set("Sec-Fetch-Site", test.site)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != test.want {
			t.Errorf("Host %q, Origin %q, Sec-Fetch-Site %q: %d, want %d", test.host, test.origin, test.site, w.Code, test.want)
		}
	}
}

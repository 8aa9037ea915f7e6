package storage

import (
	"context"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Only the server itself is exempt from the quota: not a user of its name in the history, and not
// one who impersonates it.
func TestIsOwn_OnlyOfTheServer(t *testing.T) {
	as := func(name string) context.Context {
		return request.WithUser(t.Context(), &user.DefaultInfo{Name: name})
	}
	for _, test := range []struct {
		name string
		ctx  context.Context
		want bool
	}{
		{"no request", t.Context(), true},
		{"the server", as(user.APIServerUser), true},
		{"a user with the name of the program", as(programName), false},
		{"a user", as("byre-admin"), false},
		{"an impersonated server", WithRealUser(as(user.APIServerUser), "byre-admin"), false},
	} {
		if got := isOwn(test.ctx); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

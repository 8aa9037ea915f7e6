package servers

import (
	"context"
	"os"

	"k8s.io/client-go/rest"
)

// StartByreAPI starts a "byre api" beside an API server by a command of the documentation, which bash runs with
// variables of the environment in dir, and waits until the API server answers with the group history.byre.dev.
func StartByreAPI(ctx context.Context, before *Server, dir, command string, env ...string) (*Process, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p, err := startProcessWith(env, dir, "byre-api", "/bin/bash", "-c", "exec "+command)
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(before.Config(AdminToken))
	if err != nil {
		p.Kill()
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := p.await(ctx, func(ctx context.Context) error {
		return probe(ctx, client, before.URL+"/apis/history.byre.dev/v1")
	}); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

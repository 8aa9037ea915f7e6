package standin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// patience is how long Find tries to reach a server that refuses connections,
	// because scripts start etcd and kube-apiserver at the same time.
	patience = 5 * time.Second
	// retryInterval is the time between two attempts.
	retryInterval = 20 * time.Millisecond
	// answerTimeout bounds one request for About.
	answerTimeout = 5 * time.Second
)

// A Standin is a running server of this package, from a client's point of view.
type Standin struct {
	About
	url string
}

// ErrNone is the error of Find if no URL leads to a stand-in.
var ErrNone = errors.New("no stand-in for etcd")

// Find returns the stand-in that one of the URLs leads to, or ErrNone. A server that
// refuses connections is tried for five seconds, or until ctx ends.
func Find(ctx context.Context, urls []string) (*Standin, error) {
	deadline := time.Now().Add(patience)
	for {
		isRefused := false
		for _, given := range urls {
			found, err := ask(ctx, given)
			if err == nil {
				return found, nil
			}
			isRefused = isRefused || errors.Is(err, syscall.ECONNREFUSED)
		}
		if !isRefused || time.Now().After(deadline) {
			return nil, ErrNone
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(retryInterval):
		}
	}
}

// ask returns the stand-in at a URL. It tries only http://, because no stand-in serves
// https://.
func ask(ctx context.Context, given string) (*Standin, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	u, err := url.Parse(given)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return nil, ErrNone
	}
	s := &Standin{url: "http://" + u.Host}
	res, err := s.get(ctx, aboutPath)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<16)).Decode(&s.About); err != nil || !filepath.IsAbs(s.DataDir) {
		return nil, ErrNone
	}
	return s, nil
}

// Wait returns nil when the stand-in has ended, or the error of ctx if that ends first.
func (s *Standin) Wait(ctx context.Context) error {
	res, err := s.get(ctx, endPath)
	if err == nil {
		_, _ = io.Copy(io.Discard, res.Body) // it ends with the server, in whichever way
		_ = res.Body.Close()
	}
	return ctx.Err()
}

// Dir returns the directory of the cluster that has prefix as its --etcd-prefix.
func (s *Standin) Dir(prefix string) string {
	name := url.PathEscape(strings.Trim(prefix, "/"))
	if name == "" || strings.Trim(name, ".") == "" {
		name = "_" + name
	}
	return filepath.Join(s.DataDir, "byre", name)
}

func (s *Standin) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	// Each request has a connection of its own, and uses no proxy.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("%s: %s", path, res.Status), res.Body.Close())
	}
	return res, nil
}

package auth

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"sync"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// authorities are the CAs of several files. Upstream's union parses all of them
// at each call of VerifyOptions, which authentication calls on each request; this
// one parses them again when a file has changed.
type authorities struct {
	dynamiccertificates.CAContentProvider
	files []*dynamiccertificates.DynamicFileCAContent

	mu      sync.Mutex
	content []byte // that options were made of
	options x509.VerifyOptions
	ok      bool
}

func newAuthorities(files ...*dynamiccertificates.DynamicFileCAContent) *authorities {
	providers := make([]dynamiccertificates.CAContentProvider, len(files))
	for i, file := range files {
		providers[i] = file
	}
	return &authorities{CAContentProvider: dynamiccertificates.NewUnionCAContentProvider(providers...), files: files}
}

// VerifyOptions implements dynamiccertificates.CAContentProvider. The Roots are
// the same pool for as long as the files don't change.
func (a *authorities) VerifyOptions() (x509.VerifyOptions, bool) {
	content := a.CurrentCABundleContent()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.content == nil || !bytes.Equal(a.content, content) {
		a.content = content
		a.options, a.ok = a.CAContentProvider.VerifyOptions()
	}
	return a.options, a.ok
}

// RunOnce implements dynamiccertificates.ControllerRunner.
func (a *authorities) RunOnce(ctx context.Context) error {
	var errs []error
	for _, file := range a.files {
		errs = append(errs, file.RunOnce(ctx))
	}
	return errors.Join(errs...)
}

// Run implements dynamiccertificates.ControllerRunner. Unlike upstream's union
// it returns only when the files are no longer followed.
func (a *authorities) Run(ctx context.Context, workers int) {
	var group sync.WaitGroup
	for _, file := range a.files {
		group.Go(func() { file.Run(ctx, workers) })
	}
	group.Wait()
}

package servers

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"byre/e2e/programs"
)

// InPlace says how to start byre under the name of a program that it stands in for.
type InPlace struct {
	// Dir is the working directory; the log is there too.
	Dir string
	// Name is the program's: kube-apiserver or etcd.
	Name string
	// Args is a command line that was written for that program.
	Args []string
	// Kubeconfig is the access of an administrator, by which Start learns whether the
	// server is ready. Without one Start does not wait.
	Kubeconfig string
}

// Start starts byre, and waits until it is ready if there is a Kubeconfig.
func (p InPlace) Start(ctx context.Context) (*Server, error) {
	path := filepath.Join(p.Dir, p.Name)
	if err := os.Symlink(programs.Byre.Path(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	started := time.Now()
	process, err := startProcess(p.Dir, p.Name, path, p.Args...)
	if err != nil || p.Kubeconfig == "" {
		return &Server{Process: process}, err
	}
	s := &Server{Process: process, Kubeconfig: p.Kubeconfig}
	if err := s.awaitKubeconfig(ctx); err != nil {
		s.Kill()
		return nil, err
	}
	s.StartTime = time.Since(started)
	return s, nil
}

// awaitKubeconfig waits until /readyz answers 200 to the owner of the kubeconfig.
func (s *Server) awaitKubeconfig(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		return err
	}
	s.URL = config.Host
	trust, err := rest.TLSConfigFor(config)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: freshTransport(trust)}
	return s.await(ctx, func(ctx context.Context) error { return probe(ctx, client, s.URL+"/readyz") })
}

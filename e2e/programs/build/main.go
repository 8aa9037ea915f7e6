// Command build builds the named programs: byre, kubectl, kube-apiserver, etcd, etcdutl,
// helm, kine, kube-controller-manager, kube-scheduler, kwok, sample-apiserver.
package main

import (
	"context"
	"fmt"
	"os"

	"byre/e2e/programs"
)

func main() {
	known := map[string]programs.Program{
		"byre": programs.Byre, "kubectl": programs.Kubectl, "kube-apiserver": programs.APIServer, "etcd": programs.Etcd,
		"etcdutl": programs.Etcdutl, "helm": programs.Helm, "kine": programs.Kine, "kwok": programs.Kwok,
		"sample-apiserver":        programs.Wardle,
		"kube-controller-manager": programs.ControllerManager, "kube-scheduler": programs.Scheduler,
	}
	for _, name := range os.Args[1:] {
		p, ok := known[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "build: no program %q\n", name)
			os.Exit(2)
		}
		if err := programs.Build(context.Background(), p); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(p.Path())
	}
}

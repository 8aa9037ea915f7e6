// Package pki keeps the certificates and keys that the server lives on, under
// kubeadm's file names, and the administrator's kubeconfig.
//
// # What is promised
//
//   - Ensure makes what is missing, keeps what is good, and renews a certificate
//     that is about to expire or that lacks one of the names it is asked for.
//     Authorities and the service account key are made once and never replaced.
//   - A directory without ca.key (an authority kept elsewhere) works as long as
//     the certificates are there; what can't be renewed is used until it expires
//     and reported by Report.Stale.
//   - Keys and the kubeconfig are readable by their owner only. A file is written
//     beside its place and renamed into it, so that nobody reads half of one.
//
// # What the caller owes
//
// The authority and the service account key are the same for all servers of a
// cluster: give each a copy of the directory, or the directory itself (Ensure
// takes turns). Nothing here runs in the background: renewal happens at start.
package pki

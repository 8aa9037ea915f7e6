// Package pki generates and renews the server's certificates and keys, under kubeadm's
// file names, and the administrator's kubeconfig.
//
// # What it promises
//
//   - Ensure creates missing files, keeps valid ones, and renews a certificate that expires
//     within 30 days or lacks a requested name. It creates the CAs and the service account
//     key once and never replaces them.
//
//   - A directory without ca.key works as long as the certificates exist: the CA's key may
//     be kept elsewhere. A certificate that cannot be renewed is used until it expires;
//     Report.NotRenewable names it.
//
//   - Only the owner can read keys and the kubeconfig. Each file is written under a
//     temporary name and renamed, so that no reader sees a partial file.
//
//   - Inspect changes nothing. Renew issues named certificates anew, and NewKubeconfig
//     issues one for a user; neither replaces a CA.
//
// # What the caller owes
//
// All servers of a cluster need the same CAs and service account key: each server gets a
// copy of the directory, or all use one directory, which Ensure locks. The package starts
// no goroutine and needs no shutdown; certificates are renewed only when Ensure, at the start
// of the server, or Renew is called.
package pki

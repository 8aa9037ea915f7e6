// Package console serves web pages below /console/ that show what the server has: resources and their
// objects, what happened to them, what was deleted, SQL, and the state of the server.
//
// Invariant: the console has no rights of its own. It asks the server's handler for all that it shows, by
// requests that have the credentials of the request for the page; client keeps this. So authentication,
// authorization, admission, audit, and priority and fairness judge them as any other request of the user.
//
// Invariant: a request waits for others only outside the server's filters. Console stands before them, and
// asks them who the user is (Gate) before it makes a page. A page that took a seat of priority and fairness
// while it waits for requests that need one too could wait forever.
//
// Invariant: every request only reads. So there is no session, no cookie, and no token against forged
// requests.
//
// Pages are HTML that needs no JavaScript, and names nothing of other hosts: the header
// Content-Security-Policy allows scripts and styles of the console alone, and gomponents escapes what
// users have written. All links are relative, so that a proxy may serve the pages below another path. The
// package has no goroutines that outlive a request.
package console

//! Who is behind every door: a server that sends as many bytes as it is asked for or says everything twice, and one that
//! answers requests over TLS if they come with the credential. A thread a connection.

use crate::egress::Trouble;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use std::{
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

/// What a door puts in.
pub(crate) const KEY: &str = "sk-of-the-bench";
/// The name that requests are made to; tunnels go to an address.
pub(crate) const NAME: &str = "localhost";
/// Asks for as many bytes as the eight behind it say. Whatever begins otherwise comes back.
pub(crate) const SEND: u8 = b'S';
/// The body of an answer.
pub(crate) const BODY: usize = 1024;
const PIECE: usize = 256 << 10;
/// A thousand of them wait at once.
const STACK: usize = 64 << 10;

/// Both servers.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) plain: SocketAddr,
    pub(crate) secure: SocketAddr,
    /// The certificate that the second one's is to be trusted by.
    pub(crate) ca: PathBuf,
}

impl Origin {
    pub(crate) fn start(folder: &Path) -> Result<Origin, Trouble> {
        let ca = folder.join("origin-ca.pem");
        let config = Arc::new(certificates(&ca)?);
        let plain = listen(serve_plain)?;
        let secure = listen(move |stream| serve_secure(stream, config.clone()))?;
        Ok(Origin { plain, secure, ca })
    }
}

fn listen(
    serve: impl Fn(TcpStream) -> io::Result<()> + Clone + Send + 'static,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            // Clients come and go as they like; what fails here fails there.
            _ = thread::Builder::new()
                .stack_size(STACK)
                .spawn(move || serve(stream));
        }
    });
    Ok(address)
}

fn serve_plain(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut first = [0; 2048];
    loop {
        let bytes = stream.read(&mut first)?;
        match first[..bytes] {
            [] => return Ok(()),
            [SEND, ref count @ ..] => {
                let mut number = [0; 8];
                let known = count.len().min(8);
                number[..known].copy_from_slice(&count[..known]);
                stream.read_exact(&mut number[known..])?;
                send(&mut stream, u64::from_be_bytes(number))?;
            }
            ref other => stream.write_all(other)?,
        }
    }
}

fn send(stream: &mut TcpStream, mut bytes: u64) -> io::Result<()> {
    let piece = vec![7; PIECE];
    while bytes > 0 {
        let now = usize::try_from(bytes).map_or(PIECE, |bytes| bytes.min(PIECE));
        stream.write_all(&piece[..now])?;
        bytes -= now as u64;
    }
    Ok(())
}

fn serve_secure(stream: TcpStream, config: Arc<ServerConfig>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let good = [
        format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY}\r\n\r\n").as_bytes(),
        &[b'x'; BODY],
    ]
    .concat();
    let bad = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n".to_vec();
    let wanted = format!("authorization: bearer {KEY}");
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    loop {
        request.clear();
        while !request.ends_with(b"\r\n\r\n") {
            match stream.read(&mut piece)? {
                0 => return Ok(()),
                bytes => request.extend_from_slice(&piece[..bytes]),
            }
        }
        let head = String::from_utf8_lossy(&request).to_ascii_lowercase();
        let answer = if head.contains(&wanted) { &good } else { &bad };
        stream.write_all(answer)?;
    }
}

fn certificates(ca: &Path) -> Result<ServerConfig, Trouble> {
    let mut params = CertificateParams::new(Vec::new())?;
    // Another name than the leaf's: one that has its own is taken for signed by itself.
    params
        .distinguished_name
        .push(DnType::CommonName, "Airlock bench");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let pem = params.self_signed(&key)?.pem();
    fs::write(ca, pem).map_err(|source| crate::peers::Trouble::File {
        path: ca.to_owned(),
        source,
    })?;
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new(vec![NAME.to_owned()])?.signed_by(&key, &issuer)?;
    let chain = vec![CertificateDer::from(leaf.der().to_vec())];
    let key = PrivateKeyDer::try_from(key.serialize_der())
        .map_err(|why| Trouble::Door(why.to_owned()))?;
    Ok(ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)?)
}

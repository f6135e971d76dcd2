// Harness of tests of C++ programs: a call with JSON arguments, or one of several statements. The
// program follows, with its `main` renamed.
#include <bits/stdc++.h>
#include <unistd.h>

namespace rljob {

// Descriptor of the result.
constexpr int RESULT = 3;

[[noreturn]] inline void fail() { _exit(1); }

inline void write_result(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
        ssize_t count = ::write(RESULT, text.data() + at, text.size() - at);
        if (count <= 0) fail();
        at += count;
    }
}

// JSON text that was valid when it was sent.
struct Reader {
    const std::string& text;
    size_t at = 0;

    char next() const { return at < text.size() ? text[at] : '\0'; }

    void skip_space() {
        while (std::isspace(static_cast<unsigned char>(next()))) ++at;
    }

    bool take(const char* word) {
        skip_space();
        size_t length = std::strlen(word);
        if (text.compare(at, length, word) != 0) return false;
        at += length;
        return true;
    }

    void expect(const char* word) {
        if (!take(word)) fail();
    }

    // Reads what is separated by commas until `end`.
    template <class Read>
    void list(const char* start, const char* end, Read read) {
        expect(start);
        for (bool first = true; !take(end); first = false) {
            if (!first) expect(",");
            read();
        }
    }
};

inline void append_utf8(std::string& out, unsigned code) {
    if (code < 0x80) {
        out += static_cast<char>(code);
    } else if (code < 0x800) {
        out += static_cast<char>(0xC0 | code >> 6);
        out += static_cast<char>(0x80 | (code & 0x3F));
    } else {
        out += static_cast<char>(0xE0 | code >> 12);
        out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
        out += static_cast<char>(0x80 | (code & 0x3F));
    }
}

inline void read(Reader& in, std::string& out) {
    in.expect("\"");
    out.clear();
    while (in.next() != '"') {
        if (in.at >= in.text.size()) fail();
        char c = in.text[in.at++];
        if (c != '\\') {
            out += c;
            continue;
        }
        c = in.next();
        ++in.at;
        static const std::map<char, char> escapes = {
            {'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'b', '\b'}, {'f', '\f'}};
        if (c == 'u') {
            append_utf8(out, std::stoul(in.text.substr(in.at, 4), nullptr, 16));
            in.at += 4;
        } else {
            auto escape = escapes.find(c);
            out += escape == escapes.end() ? c : escape->second;
        }
    }
    ++in.at;
}

inline void read(Reader& in, char& out) {
    std::string text;
    read(in, text);
    if (text.size() != 1) fail();
    out = text[0];
}

inline void read(Reader& in, bool& out) {
    out = in.take("true");
    if (!out) in.expect("false");
}

template <class T>
std::enable_if_t<std::is_arithmetic_v<T>> read(Reader& in, T& out) {
    in.skip_space();
    size_t end = in.text.find_first_not_of("+-.0123456789eE", in.at);
    std::string number = in.text.substr(in.at, end - in.at);
    if (number.empty()) fail();
    in.at += number.size();
    if (std::is_floating_point_v<T> || number.find_first_of(".eE") != std::string::npos) {
        double value = std::strtod(number.c_str(), nullptr);
        out = static_cast<T>(value);
        // An integer does not take a fraction.
        if (std::is_integral_v<T> && static_cast<double>(out) != value) fail();
    } else if (number[0] == '-') {
        out = static_cast<T>(std::strtoll(number.c_str(), nullptr, 10));
    } else {
        out = static_cast<T>(std::strtoull(number.c_str(), nullptr, 10));
    }
}

// Lists, sets and queues.
template <class C, class T = typename C::value_type>
auto read(Reader& in, C& out) -> decltype(out.insert(out.end(), std::declval<T>()), void()) {
    in.list("[", "]", [&] {
        std::remove_const_t<T> value{};
        read(in, value);
        out.insert(out.end(), value);
    });
}

template <class A, class B>
void read(Reader& in, std::pair<A, B>& out) {
    in.expect("[");
    read(in, out.first);
    in.expect(",");
    read(in, out.second);
    in.expect("]");
}

template <class M>
void read_map(Reader& in, M& out) {
    in.list("{", "}", [&] {
        std::string name;
        read(in, name);
        in.expect(":");
        typename M::key_type key{};
        if constexpr (std::is_same_v<typename M::key_type, std::string>) {
            key = name;
        } else {
            Reader own{name};
            read(own, key);
        }
        read(in, out[key]);
    });
}

template <class K, class V>
void read(Reader& in, std::map<K, V>& out) { read_map(in, out); }

template <class K, class V>
void read(Reader& in, std::unordered_map<K, V>& out) { read_map(in, out); }

template <class T>
void read(Reader& in, std::optional<T>& out) {
    if (in.take("null")) return;
    out.emplace();
    read(in, *out);
}

inline void write(std::string& out, const std::string& text) {
    out += '"';
    for (char c : text) {
        char escaped[8];
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
            out += escaped;
        } else {
            out += c;
        }
    }
    out += '"';
}

inline void write(std::string& out, const char* text) { write(out, std::string(text)); }
inline void write(std::string& out, char c) { write(out, std::string(1, c)); }
inline void write(std::string& out, bool value) { out += value ? "true" : "false"; }

template <class T>
std::enable_if_t<std::is_arithmetic_v<T>> write(std::string& out, T value) {
    std::ostringstream text;
    text.precision(17);
    text << +value;
    out += text.str();
}

template <class A, class B>
void write(std::string& out, const std::pair<A, B>& value);
template <class K, class V>
void write(std::string& out, const std::map<K, V>& value);
template <class K, class V>
void write(std::string& out, const std::unordered_map<K, V>& value);
template <class T>
void write(std::string& out, const std::optional<T>& value);

template <class C, class T = typename C::value_type>
auto write(std::string& out, const C& values) -> decltype(values.begin(), void()) {
    out += '[';
    bool first = true;
    for (const T& value : values) {
        if (!first) out += ',';
        first = false;
        write(out, value);
    }
    out += ']';
}

template <class A, class B>
void write(std::string& out, const std::pair<A, B>& value) {
    out += '[';
    write(out, value.first);
    out += ',';
    write(out, value.second);
    out += ']';
}

template <class M>
void write_map(std::string& out, const M& values) {
    out += '{';
    bool first = true;
    for (const auto& [key, value] : values) {
        if (!first) out += ',';
        first = false;
        if constexpr (std::is_same_v<typename M::key_type, std::string>) {
            write(out, key);
        } else {
            std::string name;
            write(name, key);
            write(out, name);
        }
        out += ':';
        write(out, value);
    }
    out += '}';
}

template <class K, class V>
void write(std::string& out, const std::map<K, V>& value) { write_map(out, value); }

template <class K, class V>
void write(std::string& out, const std::unordered_map<K, V>& value) { write_map(out, value); }

template <class T>
void write(std::string& out, const std::optional<T>& value) {
    if (value) {
        write(out, *value);
    } else {
        out += "null";
    }
}

// Reads the arguments of parameters `A`, calls, and writes the result.
template <class R, class... A, class F>
void apply(F function) {
    std::string text((std::istreambuf_iterator<char>(std::cin)), {});
    Reader in{text};
    std::tuple<std::decay_t<A>...> arguments;
    in.expect("[");
    size_t count = 0;
    auto read_one = [&](auto& argument) {
        if (count++ > 0) in.expect(",");
        read(in, argument);
    };
    std::apply([&](auto&... own) { (read_one(own), ...); }, arguments);
    in.expect("]");
    auto run = [&](auto&... own) -> R { return function(static_cast<A&&>(own)...); };
    std::string result;
    if constexpr (std::is_void_v<R>) {
        std::apply(run, arguments);
        result = "null";
    } else {
        write(result, std::apply(run, arguments));
    }
    write_result(result);
    _exit(0);
}

template <class R, class... A>
void call(R (*function)(A...)) { apply<R, A...>(function); }

template <class S, class R, class... A>
void call(R (S::*method)(A...)) {
    S own;
    apply<R, A...>([&](auto&&... arguments) -> R {
        return (own.*method)(static_cast<A&&>(arguments)...);
    });
}

template <class S, class R, class... A>
void call(R (S::*method)(A...) const) {
    const S own{};
    apply<R, A...>([&](auto&&... arguments) -> R {
        return (own.*method)(static_cast<A&&>(arguments)...);
    });
}

// Runs a statement and writes the secret if it ends.
inline void check(std::initializer_list<void (*)()> statements) {
    std::string secret;
    size_t index = 0;
    if (!(std::cin >> secret >> index) || index >= statements.size()) fail();
    statements.begin()[index]();
    write_result(secret);
    _exit(0);
}

}  // namespace rljob

#define main rljob_main_of_program
